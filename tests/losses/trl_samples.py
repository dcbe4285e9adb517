"""Losses over sampled completions by TRL's trainers: policies and advantages. A part of
make_trl_goldens.py; make_policy_goldens.py of tests/recipes replays whole runs with its trainers.

There are two prompts with four completions each.
"""

import types
from collections import defaultdict

import torch
from trl import GRPOTrainer, RLOOTrainer

from trl_stand_ins import EOS, PAD, VOCAB, WIDTH, Head, bare, in_both_precisions, leaf, put, record

GROUPS, GENERATIONS, PROMPT, MAX_COMPLETION = 2, 4, 2, 6


def make_samples():
    g = torch.Generator().manual_seed(23)
    normal = lambda *shape: torch.randn(*shape, generator=g)

    # Completions of different lengths end with EOS, but for two that were cut off.
    lengths = torch.tensor([6, 2, 5, 6, 1, 4, 6, 3])
    rows, longest = GROUPS * GENERATIONS, MAX_COMPLETION
    completion = (torch.arange(longest)[None] < lengths[:, None]).long()
    drawn = torch.randint(2, VOCAB, completion.shape, generator=g)
    ids = torch.where(completion.bool(), drawn, PAD)
    for row, length in enumerate(lengths):
        if row not in (3, 6):
            ids[row, length - 1] = EOS

    hidden = normal(rows, PROMPT + longest, WIDTH)
    s = {
        "hidden": hidden,
        "old": hidden + 0.25 * normal(*hidden.shape),
        "reference": hidden + 0.6 * normal(*hidden.shape),
        "weight": normal(VOCAB, WIDTH),
        "prompt": torch.randint(2, VOCAB, (rows, PROMPT), generator=g),
        "ids": ids,
        "mask": completion,
        "truncated": torch.tensor([0, 0, 0, 1, 0, 0, 1, 0]),
        "rewards": torch.tensor([1.0, 0.0, 0.5, -0.25, 2.0, 2.0, 0.1, 1.2]),
    }

    # The generator had other weights than the old policy.
    logits = (s["old"] + 0.15 * normal(*hidden.shape)) @ s["weight"].T
    logps = torch.log_softmax(logits[:, PROMPT - 1 : -1], -1)
    s["generator"] = logps.gather(2, ids[:, :, None]).squeeze(2) * completion
    for key, value in s.items():
        put(f"samples.{key}", value)
    return s


class Samples:
    """Stands for generation and scoring in the two trainers."""

    def _generate(self, prompts):
        s, lengths = self.samples, self.samples["mask"].sum(1)
        prompt_ids = s["prompt"].tolist()
        completions = [ids[:n].tolist() for ids, n in zip(s["ids"], lengths)]
        if not isinstance(self, GRPOTrainer):
            return prompt_ids, completions, completions
        sampled = None
        if self.use_vllm:
            sampled = [logps[:n].tolist() for logps, n in zip(s["generator"], lengths)]
        return prompt_ids, completions, None, completions, sampled, {}, None, []

    def _calculate_rewards(self, *args):
        return self.rewards[:, None]


class SampledGRPO(Samples, GRPOTrainer):
    _tokenizer = types.SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)


class SampledRLOO(Samples, RLOOTrainer):
    _tokenizer = types.SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)


def sampled(trainer_class, s, dtype, delta=None, use_bias_correction_kl=True, **changes):
    """A trainer on the samples `s`, with TRL's default options but for `changes`."""
    weight = s["weight"].to(dtype)
    temperature = changes.pop("temperature", 1.0)
    logs = {key: [] for key in ("prompt", "completion", "advantages")}
    attributes = dict(
        # The samples and the models.
        samples=s,
        rewards=s["rewards"],
        model=Head(s["old"].to(dtype), weight, temperature),
        ref_model=Head(s["reference"].to(dtype), weight, temperature),
        # Generation.
        environments=None,
        tools=None,
        pad_to_multiple_of=None,
        num_generations=GENERATIONS,
        max_completion_length=MAX_COMPLETION,
        eos_token_ids=[EOS],
        environment_factories=None,
        chat_template_kwargs={},
        processing_class=types.SimpleNamespace(
            batch_decode=lambda ids, skip_special_tokens: [""] * len(ids)
        ),
        # The correction for a generator with other weights.
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        vllm_importance_sampling_mode="sequence_mask",
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_clip_max=3.0,
        # Rewards and advantages.
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=torch.ones(1),
        reward_func_names=["reward"],
        reward_funcs=[None],
        reward_clip_range=None,
        scale_rewards="group",
        normalize_advantages=False,
        # The loss.
        loss_type="dapo",
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.2,
        importance_sampling_level="token",
        mask_truncated_completions=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        num_iterations=1,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        # Reports.
        log_multimodal=False,
        _pending_extra_logs={},
        _pending_metrics={},
        _logs={**logs, "rewards": defaultdict(list)},
    )
    trainer = bare(trainer_class, **{**attributes, **changes})

    # Twice as many updates as generations makes TRL keep the old log-probabilities.
    trainer.args = types.SimpleNamespace(
        per_device_train_batch_size=len(s["ids"]),
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing_kwargs=None,
        use_bias_correction_kl=use_bias_correction_kl,
        delta=delta,
    )
    return trainer


POLICY = {
    "loss_type": "dapo",
    "level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "off_policy": None,
    "beta": 0.0,
    "bias_correction": True,
    "old": True,  # ratios to older weights; otherwise they are 1
    "correction": "none",
    "cap": 3.0,
    "masked": False,
    "temperature": 1.0,
}
POLICY_METRICS = (
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region",
    "cispo_clip_ratio",
    "sampling",
)


def record_policy(s, name, case):
    """The loss of a case, its gradients, metrics and advantages."""
    corrected = case["correction"] != "none"
    epsilon, epsilon_high = case["epsilon"], case["epsilon_high"]
    options = dict(
        loss_type=case["loss_type"],
        importance_sampling_level=case["level"],
        epsilon_low=epsilon,
        epsilon_high=epsilon if epsilon_high is None else epsilon_high,
        beta=case["beta"],
        use_bias_correction_kl=case["bias_correction"],
        num_iterations=2 if case["old"] else 1,
        use_vllm=corrected,
        vllm_importance_sampling_correction=corrected,
        vllm_importance_sampling_mode=case["correction"],
        vllm_importance_sampling_clip_max=case["cap"],
        mask_truncated_completions=case["masked"],
        temperature=case["temperature"],
        delta=case["delta"],
        off_policy_mask_threshold=case["off_policy"],
    )
    seen = {}

    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        trainer = sampled(SampledGRPO, s, dtype, **options)
        with torch.no_grad():
            batch = trainer._generate_and_score_completions([{"prompt": "p"}] * len(s["ids"]))
        assert ("old_per_token_logps" in batch) == (case["old"] or corrected)
        loss = trainer._compute_loss(Head(hidden, weight, case["temperature"]), batch)
        metrics = trainer._metrics["train"]
        metrics = {key: repr(float(metrics[key][-1])) for key in metrics}
        metrics = {key: metrics[key] for key in metrics if key.startswith(POLICY_METRICS)}

        # What is the same in both precisions is written once.
        if dtype == torch.float64:
            seen["num_items"] = batch["num_items_in_batch"].item()
            put(f"{name}.advantages", batch["advantages"])
        return loss, hidden, weight, metrics

    values = in_both_precisions(name, run)
    written = {key: int(case[key]) for key in ("old", "masked", "bias_correction")}
    written["epsilon_high"] = "-" if epsilon_high is None else epsilon_high
    for key in ("delta", "off_policy"):
        written[key] = "-" if case[key] is None else case[key]
    record("policy", name, case | written | {"max_completion": MAX_COMPLETION, **seen, **values})


def make_policies(s):
    n = 0

    def add(loss_type, **changes):
        nonlocal n
        record_policy(s, f"g{n}", POLICY | {"loss_type": loss_type} | changes)
        n += 1

    for loss_type in ("grpo", "bnpo", "dr_grpo", "dapo"):
        add(loss_type, old=False)
        add(loss_type)
        add(loss_type, beta=0.3, epsilon=0.1, epsilon_high=0.28, temperature=0.8)
        add(loss_type, masked=True, beta=0.05)
        add(loss_type, level="sequence", epsilon=0.03, epsilon_high=0.04, beta=0.1)
        add(loss_type, level="sequence", epsilon=0.02, masked=True)
    for correction in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        for cap in (3.0, 1.05):
            add("grpo", correction=correction, cap=cap, beta=0.1, masked=cap < 2)
            add("dapo", level="sequence", correction=correction, cap=cap)
    for level in ("token", "sequence"):
        narrow = level == "sequence"  # its ratios are near 1
        clip = dict(epsilon=0.02, delta=1.03) if narrow else dict(epsilon=0.2, delta=1.3)
        add("dapo", level=level, **clip)
        add("grpo", level=level, **clip, beta=0.1, masked=True)
        cap = dict(epsilon_high=1.01 if narrow else 1.1, level=level)
        add("cispo", **cap)
        add("cispo", **cap, beta=0.1, masked=True, temperature=0.8)
        add("cispo", **cap, correction="token_truncate", cap=1.05)
    for off_policy in (0.01, 0.1):
        add("dapo", off_policy=off_policy)
        add("grpo", off_policy=off_policy, beta=0.1, masked=True)
        add("dapo", off_policy=off_policy, correction="token_truncate", level="sequence")
    for level in ("token", "sequence"):
        add("dapo", level=level, epsilon=0.03, beta=0.3, bias_correction=False)


def make_advantages(s):
    n = 0
    rewards = {
        "plain": s["rewards"],
        "equal": torch.tensor([0.1] * 4 + [0.0, 1.0, 0.0, 1.0]),
        "small": torch.tensor([1e-3, 2e-3, 1e-3, 0.0, 5.0, 5.001, 4.999, 5.0]),
    }
    for reward_name, values in rewards.items():
        put(f"rewards.{reward_name}", values)
        for estimator in ("group", "batch", "none", "rloo", "rloo_normalized"):
            # Both options are set on either trainer; each reads its own.
            rloo = estimator.startswith("rloo")
            options = dict(normalize_advantages=estimator == "rloo_normalized")
            options["scale_rewards"] = "group" if rloo else estimator
            trainer_class = SampledRLOO if rloo else SampledGRPO
            trainer = sampled(trainer_class, s, torch.float32, rewards=values, **options)
            with torch.no_grad():
                batch = trainer._generate_and_score_completions([{"prompt": "p"}] * len(s["ids"]))

            put(f"a{n}.advantages", batch["advantages"])
            written = {"rewards": reward_name, "estimator": estimator}
            for key in ("frac_reward_zero_std", "reward", "reward_std"):
                written[key] = trainer._metrics["train"][key][-1]
            record("advantages", f"a{n}", written)
            n += 1
