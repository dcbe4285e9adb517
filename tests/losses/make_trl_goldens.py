"""Reference values of the preference, policy and distillation losses, computed by TRL 1.4.0's own methods.

Run:  python tests/losses/make_trl_goldens.py    (trl 1.4.0, torch 2.11; writes trl_goldens.txt and trl_goldens.bin beside itself)

TRL's trainers are made without their constructors and given the attributes that their loss methods read; the model is a linear
head on hidden states that are the leaves. Called as they are: DPOTrainer._compute_loss, CPOTrainer.get_batch_loss_metrics and
cpo_loss, ORPOTrainer.get_batch_loss_metrics, GKDTrainer.generalized_jsd_loss, GRPOTrainer._generate_and_score_completions
(advantages, old and generator ratios) and _compute_loss, RLOOTrainer._generate_and_score_completions.

trl_goldens.txt, one record a line:
  tensor NAME OFFSET DIM...             float32 data at OFFSET (in floats) of trl_goldens.bin
  preference | jsd | policy | advantages NAME key=value ...    its gradients are the tensors NAME.dh and NAME.dw
Values and gradients come from float64 hidden states; `loss32` is the same in float32, and the script refuses to write goldens where
the two disagree.
"""

import math
import pathlib
import types
from collections import defaultdict

import numpy as np
import torch
import trl
from trl import DPOTrainer, GRPOTrainer, RLOOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOTrainer

HERE = pathlib.Path(__file__).parent
VOCAB, WIDTH, PAD, EOS = 11, 5, 0, 1
floats, lines = [], []
offset = 0


def put(name, tensor):
    global offset
    data = tensor.detach().to(torch.float32).contiguous().numpy().ravel()
    lines.append(f"tensor {name} {offset} " + " ".join(str(d) for d in tensor.shape))
    floats.append(data)
    offset += data.size


def record(kind, name, values):
    lines.append(f"{kind} {name} " + " ".join(f"{key}={value}" for key, value in values.items()))


class Head(torch.nn.Module):
    """Logits of given hidden states, whatever the tokens are."""

    is_gradient_checkpointing = False

    def __init__(self, hidden, weight):
        super().__init__()
        self.hidden, self.weight = hidden, weight

    def forward(self, input_ids=None, **kwargs):
        assert input_ids.shape == self.hidden.shape[:2]
        return types.SimpleNamespace(logits=self.hidden @ self.weight.T)


class OneProcess:
    """What the trainers ask of accelerate."""

    device, num_processes, process_index, is_main_process = torch.device("cpu"), 1, 0, True
    gather = gather_for_metrics = staticmethod(lambda tensor: tensor)


def bare(trainer_class, **attributes):
    trainer = trainer_class.__new__(trainer_class)
    trainer.accelerator = OneProcess()
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    for key, value in attributes.items():
        setattr(trainer, key, value)
    return trainer


def in_both_precisions(name, run):
    """run(dtype) -> (loss, hidden, weight, values): its gradients in float64, checked against float32."""
    results = []
    for dtype in (torch.float64, torch.float32):
        loss, hidden, weight, values = run(dtype)
        loss.backward()
        results.append((loss.item(), hidden.grad, weight.grad, values))
    (loss, dh, dw, values), (loss32, dh32, dw32, _) = results
    assert abs(loss32 - loss) <= 5e-6 * max(abs(loss), 0.1), (name, loss32, loss)
    assert (dh32 - dh).norm() <= 1e-5 * dh.norm() and (dw32 - dw).norm() <= 1e-5 * dw.norm(), name
    put(f"{name}.dh", dh)
    put(f"{name}.dw", dw)
    return {**values, "loss": repr(loss), "loss32": repr(loss32)}


def leaf(tensor, dtype):
    return tensor.detach().to(dtype, copy=True).requires_grad_()


# ---- pairs: chosen above rejected; one prompt token, so that ORPO's cross-entropy over prompt and completion is over the completion
PAIRS, LENGTH = 4, 10


def make_pairs():
    g = torch.Generator().manual_seed(11)
    normal = lambda *shape: torch.randn(*shape, generator=g)
    lengths = torch.tensor([10, 4, 7, 2, 6, 9, 3, 8])
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).long()
    hidden = normal(2 * PAIRS, LENGTH, WIDTH)
    s = {
        "hidden": hidden,
        "reference": hidden + 0.5 * normal(2 * PAIRS, LENGTH, WIDTH),
        "weight": normal(VOCAB, WIDTH),
        "teacher_weight": 1.3 * normal(VOCAB, WIDTH),
        "ids": torch.where(mask.bool(), torch.randint(2, VOCAB, mask.shape, generator=g), PAD),
        "attention": mask,
        "mask": mask * (torch.arange(LENGTH) > 0),
    }
    for key, value in s.items():
        put(f"pairs.{key}", value)
    return s


METRICS = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"]


def plain_metrics(metrics):
    return {key: repr(float(metrics[key][-1] if isinstance(metrics[key], list) else metrics[key])) for key in METRICS}


def run_dpo(s, losses, weights, beta, smoothing):
    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        model, reference = Head(hidden, weight), Head(s["reference"].to(dtype), s["weight"].to(dtype))
        trainer = bare(
            DPOTrainer, model=model, ref_model=reference, precompute_ref_logps=False, ld_alpha=None, f_divergence_type="reverse_kl",
            loss_types=losses, loss_weights=weights, beta=beta, label_smoothing=smoothing, use_weighting=False, _total_train_tokens=0,
            args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
        )  # fmt: skip
        inputs = {"input_ids": s["ids"], "attention_mask": s["attention"], "completion_mask": s["mask"]}
        loss = trainer._compute_loss(model, inputs, False)
        return loss, hidden, weight, plain_metrics(trainer._metrics["train"])

    return run


def preference_batch(s):
    labels = s["ids"].masked_fill(s["mask"] == 0, -100)
    batch = {}
    for side, rows in (("chosen", slice(0, PAIRS)), ("rejected", slice(PAIRS, None))):
        for key, value in (("input_ids", s["ids"]), ("attention_mask", s["attention"]), ("labels", labels)):
            batch[f"{side}_{key}"] = value[rows]
    return batch


def run_reference_free(s, trainer_class, beta, **attributes):
    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        trainer = bare(
            trainer_class, is_encoder_decoder=False, pad_token_id=PAD, padding_value=PAD, aux_loss_enabled=False, beta=beta, **attributes
        )
        loss, metrics = trainer.get_batch_loss_metrics(Head(hidden, weight), preference_batch(s))
        return loss, hidden, weight, plain_metrics(metrics)

    return run


def run_cdpo(s, beta, smoothing):
    """CPOTrainer's sigmoid loss, the one in TRL that still smooths labels, on the log-ratios to a reference."""

    def run(dtype):
        hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
        trainer = bare(CPOTrainer, alpha=0.0, loss_type="sigmoid", label_smoothing=smoothing, beta=beta)
        labels = s["ids"].masked_fill(s["mask"] == 0, -100)
        policy = trainer.get_batch_logps(hidden @ weight.T, labels)
        reference = trainer.get_batch_logps(s["reference"].to(dtype) @ s["weight"].to(dtype).T, labels)
        chosen, rejected = (policy - reference).chunk(2)
        losses, chosen_rewards, rejected_rewards = trainer.cpo_loss(chosen, rejected)
        metrics = {
            "rewards/chosen": chosen_rewards.mean(), "rewards/rejected": rejected_rewards.mean(),
            "rewards/margins": (chosen_rewards - rejected_rewards).mean(),
            "rewards/accuracies": (chosen_rewards > rejected_rewards).float().mean(),
            "logps/chosen": policy[:PAIRS].detach().mean(), "logps/rejected": policy[PAIRS:].detach().mean(),
        }  # fmt: skip
        return losses.mean(), hidden, weight, plain_metrics(metrics)

    return run


def make_preferences(s):
    n = 0

    def add(run, losses, beta, weights=(), smoothing=0.0, gamma=0.5):
        nonlocal n
        name = f"p{n}"
        n += 1
        values = {"losses": ",".join(losses), "weights": ",".join(str(w) for w in weights) or "-", "beta": beta}
        record("preference", name, {**values, "smoothing": smoothing, "gamma": gamma, **in_both_precisions(name, run)})

    for beta in (0.1, 0.8):
        for loss in ("sigmoid", "hinge", "ipo", "sigmoid_norm", "apo_zero", "apo_down", "sft"):
            if loss != "sft":  # alone it needs no reference here: other metrics than DPOTrainer's
                add(run_dpo(s, [loss], [1.0], beta, 0.0), [loss], beta)
        add(run_dpo(s, ["robust"], [1.0], beta, 0.2), ["robust"], beta, smoothing=0.2)
        add(run_cdpo(s, beta, 0.2), ["cdpo"], beta, smoothing=0.2)
        add(run_dpo(s, ["sigmoid", "sft"], [1.0, 0.7], beta, 0.0), ["sigmoid", "sft"], beta, [1.0, 0.7])
        add(run_dpo(s, ["apo_down", "hinge", "robust"], [0.5, 2.0, 0.3], beta, 0.1), ["apo_down", "hinge", "robust"], beta, [0.5, 2.0, 0.3], 0.1)
        simpo = dict(alpha=0.0, loss_type="simpo", label_smoothing=0.0)
        for gamma in (0.5, 1.4):
            add(run_reference_free(s, CPOTrainer, beta, simpo_gamma=gamma, cpo_alpha=0.0, **simpo), ["simpo"], beta, gamma=gamma)
        add(run_reference_free(s, CPOTrainer, beta, simpo_gamma=0.3, cpo_alpha=0.6, **simpo), ["simpo", "sft"], beta, [1.0, 0.6], gamma=0.3)
        add(run_reference_free(s, ORPOTrainer, beta), ["orpo"], beta)


def make_jsd(s):
    labels = s["ids"].masked_fill(s["mask"] == 0, -100)
    n = 0
    for beta in (0.0, 0.1, 0.5, 0.9, 1.0):
        for temperature in (1.0, 0.7, 2.0):

            def run(dtype):
                hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
                teacher = s["reference"].to(dtype) @ s["teacher_weight"].to(dtype).T
                loss = GKDTrainer.generalized_jsd_loss(hidden @ weight.T, teacher, labels, beta=beta, temperature=temperature)
                return loss, hidden, weight, {}

            name = f"j{n}"
            n += 1
            record("jsd", name, {"beta": beta, "temperature": temperature, **in_both_precisions(name, run)})


# ---- sampled completions: two prompts, four completions each
GROUPS, GENERATIONS, PROMPT = 2, 4, 2


def make_samples():
    g = torch.Generator().manual_seed(23)
    normal = lambda *shape: torch.randn(*shape, generator=g)
    lengths = torch.tensor([6, 2, 5, 6, 1, 4, 6, 3])
    rows, longest = GROUPS * GENERATIONS, 6
    completion = (torch.arange(longest)[None] < lengths[:, None]).long()
    ids = torch.where(completion.bool(), torch.randint(2, VOCAB, completion.shape, generator=g), PAD)
    for row, length in enumerate(lengths):
        if row not in (3, 6):  # these two were cut off
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
    logits = (s["old"] + 0.15 * normal(*hidden.shape)) @ s["weight"].T
    picked = torch.log_softmax(logits[:, PROMPT - 1 : -1], -1).gather(2, ids[:, :, None]).squeeze(2)
    s["generator"] = picked * completion
    for key, value in s.items():
        put(f"samples.{key}", value)
    return s


class Samples:
    """Stands for generation and scoring in the two trainers."""

    def _generate(self, prompts):
        s, lengths = self.samples, self.samples["mask"].sum(1)
        completions = [ids[:n].tolist() for ids, n in zip(s["ids"], lengths)]
        sampled = [logps[:n].tolist() for logps, n in zip(s["generator"], lengths)] if self.use_vllm else None
        generated = (s["prompt"].tolist(), completions, None, completions, lengths.sum(), sampled, {}, None, [])
        return generated if isinstance(self, GRPOTrainer) else (s["prompt"].tolist(), completions, completions)

    def _calculate_rewards(self, *args):
        return self.rewards[:, None]


class SampledGRPO(Samples, GRPOTrainer):
    _tokenizer = types.SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)


class SampledRLOO(Samples, RLOOTrainer):
    _tokenizer = types.SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)


def sampled(trainer_class, s, dtype, **changes):
    weight = s["weight"].to(dtype)
    attributes = dict(
        samples=s, rewards=s["rewards"], model=Head(s["old"].to(dtype), weight), ref_model=Head(s["reference"].to(dtype), weight),
        environments=None, pad_to_multiple_of=None, mask_truncated_completions=False, tools=None, num_iterations=1, use_vllm=False,
        vllm_importance_sampling_correction=False, vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_cap=3.0,
        beta=0.0, temperature=1.0, model_kwarg_keys=set(), num_generations=GENERATIONS, multi_objective_aggregation="sum_then_normalize",
        reward_weights=torch.ones(1), reward_func_names=["reward"], reward_funcs=[None], scale_rewards="group", top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, importance_sampling_level="token", loss_type="dapo", epsilon_low=0.2, epsilon_high=0.2,
        current_gradient_accumulation_steps=1, max_completion_length=6, reward_clip_range=None, normalize_advantages=False,
        processing_class=types.SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: [""] * len(ids)), _pending_extra_logs={},
        _pending_metrics={}, _logs={key: defaultdict(list) if key == "rewards" else [] for key in ("prompt", "completion", "rewards", "advantages")},
    )  # fmt: skip
    trainer = bare(trainer_class, **{**attributes, **changes})
    # Twice as many updates as generations makes TRL keep the old log-probabilities.
    trainer.args = types.SimpleNamespace(
        per_device_train_batch_size=len(s["ids"]), steps_per_generation=1, gradient_accumulation_steps=1, gradient_checkpointing_kwargs=None,
        use_bias_correction_kl=False, delta=None,
    )  # fmt: skip
    return trainer


def make_policies(s):
    n = 0

    def add(loss_type="dapo", level="token", epsilon=0.2, epsilon_high=None, beta=0.0, old=True, correction="none", cap=3.0, masked=False, temperature=1.0):
        nonlocal n
        name = f"g{n}"
        n += 1
        seen = {}

        def run(dtype):
            hidden, weight = leaf(s["hidden"], dtype), leaf(s["weight"], dtype)
            trainer = sampled(
                SampledGRPO, s, dtype, loss_type=loss_type, importance_sampling_level=level, epsilon_low=epsilon,
                epsilon_high=epsilon if epsilon_high is None else epsilon_high, beta=beta, num_iterations=2 if old else 1,
                use_vllm=correction != "none", vllm_importance_sampling_correction=correction != "none",
                vllm_importance_sampling_mode=correction, vllm_importance_sampling_cap=cap, mask_truncated_completions=masked,
                temperature=temperature,
            )  # fmt: skip
            with torch.no_grad():
                batch = trainer._generate_and_score_completions([{"prompt": "p"}] * len(s["ids"]))
            assert ("old_per_token_logps" in batch) == (old or correction != "none")
            loss = trainer._compute_loss(Head(hidden, weight), batch)
            metrics = {key: repr(float(value[-1])) for key, value in trainer._metrics["train"].items()
                       if key.startswith(("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region", "sampling"))}  # fmt: skip
            if dtype == torch.float64:
                seen["num_items"] = batch["num_items_in_batch"].item()
                put(f"{name}.advantages", batch["advantages"])
            return loss, hidden, weight, metrics

        values = in_both_precisions(name, run)
        record("policy", name, {
            "loss_type": loss_type, "level": level, "epsilon": epsilon, "epsilon_high": "-" if epsilon_high is None else epsilon_high,
            "beta": beta, "old": int(old), "correction": correction, "cap": cap, "masked": int(masked), "temperature": temperature,
            "max_completion": 6, **seen, **values,
        })  # fmt: skip

    for loss_type in ("grpo", "bnpo", "dr_grpo", "dapo"):
        add(loss_type, old=False)  # ratios of 1
        add(loss_type)
        add(loss_type, beta=0.3, epsilon=0.1, epsilon_high=0.28, temperature=0.8)
        add(loss_type, masked=True, beta=0.05)
        add(loss_type, level="sequence", epsilon=0.03, epsilon_high=0.04, beta=0.1)
        add(loss_type, level="sequence", epsilon=0.02, masked=True)
    for correction in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        for cap in (3.0, 1.05):
            add("grpo", correction=correction, cap=cap, beta=0.1, masked=cap < 2)
            add("dapo", level="sequence", correction=correction, cap=cap)


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
            rloo = estimator.startswith("rloo")
            trainer = sampled(
                SampledRLOO if rloo else SampledGRPO, s, torch.float32, rewards=values, normalize_advantages=estimator == "rloo_normalized",
                scale_rewards="group" if rloo else estimator,
            )  # fmt: skip
            with torch.no_grad():
                batch = trainer._generate_and_score_completions([{"prompt": "p"}] * len(s["ids"]))
            metrics = trainer._metrics["train"]
            put(f"a{n}.advantages", batch["advantages"])
            record("advantages", f"a{n}", {
                "rewards": reward_name, "estimator": estimator, "frac_reward_zero_std": metrics["frac_reward_zero_std"][-1],
                "reward": metrics["reward"][-1], "reward_std": metrics["reward_std"][-1],
            })  # fmt: skip
            n += 1


def main():
    assert trl.__version__ == "1.4.0", trl.__version__
    pairs = make_pairs()
    make_preferences(pairs)
    make_jsd(pairs)
    samples = make_samples()
    make_policies(samples)
    make_advantages(samples)
    np.concatenate(floats).astype("<f4").tofile(HERE / "trl_goldens.bin")
    (HERE / "trl_goldens.txt").write_text("\n".join(lines) + "\n")
    print(sum(not line.startswith("tensor") for line in lines), "cases,", 4 * offset, "bytes")
    assert all(math.isfinite(x) for block in floats for x in block)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
