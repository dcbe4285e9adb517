"""Goldens for whole grpo and on_policy_distill runs: recorded samples, replayed in a plain loop
around TRL 1.16.0's own code, fp32.

Run:  RETORT_BIN=/path/to/retort python tests/recipes/make_policy_goldens.py all
after make_goldens.py (trl 1.16.0, torch 2.11)

With RETORT_BIN the program runs the recipes of the named cases, or of all, and the samples it drew
are recorded; those of the others, and of all without it, are in policy.json and replayed again. The
replay refuses samples whose log-probabilities or rewards are not what PyTorch's weights of that
step, or re, say.

Writes into tests/recipes/goldens/: prompts.jsonl, policy.json with each case's recipe ($GOLDENS and
$RUN stand for folders), its samples by step ([prompt, completion, reward, log-probability of the
completion by PyTorch]) and what a run reports, policy_changes.safetensors as make_goldens.py's.
grpo: GRPOTrainer._generate_and_score_completions and _compute_loss (rloo and reinforce_plus_plus:
the advantages by formula; max_staleness: old log-probabilities of the weights that drew, of the
distribution that was drawn from, as formed here). on_policy_distill:
GKDTrainer.generalized_jsd_loss, or GRPOTrainer._compute_loss with an advantage for each token.
"""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import torch
import trl
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from trl.experimental.gkd import GKDTrainer
from trl.rewards import get_soft_overlong_punishment

sys.path.append(str(pathlib.Path(__file__).parent.parent / "losses"))
from make_goldens import LR, OUT, change_of, own_parameters, write_cases  # noqa: E402
from policy_cases import (  # noqa: E402
    DISTILL,
    EOS,
    GENERATIONS,
    GRPO,
    MAX_NEW_TOKENS,
    PAD,
    PROMPTS,
    REWARDS,
    distill_recipe,
    grpo_recipe,
)
from trl_samples import SampledGRPO, sampled  # noqa: E402
from trl_stand_ins import with_fused_head  # noqa: E402

SAMPLE = ("prompt_ids", "token_ids", "reward", "logp")


def make_prompts(path):
    g = torch.Generator().manual_seed(29)
    number = lambda low, high: int(torch.randint(low, high, (1,), generator=g))
    words = lambda n: " ".join(f"w{number(0, PAD)}" for _ in range(n))
    rows = [{"prompt": words(number(1, 6)), "completion": words(3)} for _ in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- the samples of a run: {step: [sample]}
def record_samples(recipe):
    with tempfile.TemporaryDirectory() as folder:
        path, run = pathlib.Path(folder) / "recipe.yaml", pathlib.Path(folder) / "run"
        path.write_text(recipe.replace("$GOLDENS", str(OUT)).replace("$RUN", str(run)))
        command = [os.environ["RETORT_BIN"], "launch", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples = {}
        for file in (run / "samples").glob("step-*-rank-0.jsonl"):
            step = int(file.name.split("-")[1])
            samples[step] = [json.loads(line) for line in file.read_text().splitlines()]
        return samples


def stored_samples(golden):
    named = lambda samples: [dict(zip(SAMPLE, sample)) for sample in samples]
    return {int(step): named(samples) for step, samples in golden["samples"].items()}


def check_samples(samples, logps, rewards=REWARDS):
    """The recorded samples against PyTorch's log-probabilities [S, T] of their tokens at this
    step's weights; keeps their sums."""
    for sample, row in zip(samples, logps):
        sample["logp"] = round(row[: len(sample["token_ids"])].double().sum().item(), 6)
        if "sampling_logps" in sample:
            recorded = torch.tensor(sample["sampling_logps"])
            largest = (recorded - row[: len(recorded)]).abs().max()
            assert largest < 2e-5, "the generator had other weights than the student"
        if sample["reward"] is not None:
            text = " ".join(f"w{i}" for i in sample["token_ids"] if i < PAD)
            reward = sum(r["weight"] * bool(re.search(r["pattern"], text)) for r in rewards)
            assert sample["reward"] == reward, (text, sample["reward"])


def batch_of(samples):
    """input_ids, attention_mask, labels, padded on the right."""
    rows = [s["prompt_ids"] + s["token_ids"] for s in samples]
    longest = max(map(len, rows))
    ids, mask, labels = (torch.full((len(rows), longest), fill) for fill in (PAD, 0, -100))
    for i, (row, sample) in enumerate(zip(rows, samples)):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
        labels[i, len(sample["prompt_ids"]) : len(row)] = torch.tensor(sample["token_ids"])
    return ids, mask, labels


class Replay(SampledGRPO):
    """TRL's trainer with recorded samples in place of generation and rewards."""

    _tokenizer = types.SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)

    def _generate(self, prompts):
        completions = [s["token_ids"] for s in self.samples]
        prompt_ids = [s["prompt_ids"] for s in self.samples]
        drawn = [row[: len(c)].tolist() for row, c in zip(self.drawn, completions)]
        drawn = drawn if self.use_vllm else None
        return prompt_ids, completions, None, completions, drawn, {}, None, []


def make_replay(model, frozen, num_samples, **changes):
    nothing = torch.zeros(1, 1, 1)
    stub = {"weight": nothing[0], "old": nothing, "reference": nothing}
    stub |= {"rewards": None, "ids": [None] * num_samples}
    sizes = dict(num_generations=GENERATIONS, max_completion_length=MAX_NEW_TOKENS)
    models = dict(model=model, ref_model=frozen)
    return sampled(Replay, stub, torch.float32, **models, **sizes, **changes)


def rloo_advantages(rewards):
    groups = rewards.view(-1, GENERATIONS)
    others = (groups.sum(1, keepdim=True) - groups) / (GENERATIONS - 1)
    return (groups - others).flatten()


METRICS = [
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "entropy",
    "kl",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
]


@torch.no_grad()
def drawn_from(model, samples, temperature, top_p):
    """The log-probability [S, T] of each token in the distribution that it was drawn from: of the
    tokens before which less than `top_p` of the mass stands."""
    rows = []
    for sample in samples:
        ids = torch.tensor([sample["prompt_ids"] + sample["token_ids"]])
        first = len(sample["prompt_ids"]) - 1
        logits = model(input_ids=ids).logits[0, first:-1].double() / temperature
        probabilities, order = torch.softmax(logits, -1).sort(-1, descending=True)
        kept = probabilities.cumsum(-1) - probabilities < top_p
        probabilities = probabilities * kept
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        of_ids = torch.zeros_like(probabilities).scatter(1, order, probabilities)
        tokens = torch.tensor(sample["token_ids"])[:, None]
        rows.append(of_ids.gather(1, tokens)[:, 0].log().float())
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def grpo_loss(model, frozen, case):
    """samples -> (loss, metrics); `samples` is None where the last ones are used again."""
    iterations, epsilon = case.get("num_iterations", 1), case.get("epsilon", 0.2)
    parts, in_reward = case.get("num_mini_batches", 1), case.get("kl_in_reward", False)
    corrected, staleness = "sampling_correction" in case, case.get("max_staleness", 0)
    generator, versions = copy.deepcopy(model), []
    model, frozen = (with_fused_head(m, case.get("temperature", 1.0)) for m in (model, frozen))
    trainer = make_replay(
        model,
        frozen,
        PROMPTS * GENERATIONS * parts,
        loss_type=case["loss_type"],
        beta=0.0 if in_reward else case.get("beta", 0.0),
        delta=case.get("delta"),
        off_policy_mask_threshold=case.get("off_policy_mask_threshold"),
        mask_truncated_completions=case.get("mask_truncated_completions", False),
        num_iterations=iterations,
        epsilon_low=epsilon,
        epsilon_high=case.get("epsilon_high", epsilon),
        importance_sampling_level=case.get("importance_sampling_level", "token"),
        use_vllm=corrected,
        vllm_importance_sampling_correction=corrected,
        vllm_importance_sampling_mode=case.get("sampling_correction"),
        vllm_importance_sampling_clip_max=case.get("importance_sampling_cap", 3.0),
        scale_rewards=case.get("scale_rewards", "group"),
        use_bias_correction_kl=case.get("use_bias_correction_kl", True),
    )
    # What a completion may end with if it was not cut off.
    trainer.eos_token_ids = [EOS, *(int(word[1:]) for word in case.get("stop", ()))]
    kept = {}

    def reference_kl(batch):
        """RLOOTrainer's estimate of each completion's KL, and its mean over tokens."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        width = batch["completion_ids"].shape[1]
        with torch.no_grad():
            logps, *_ = trainer._get_per_token_logps_and_entropies(frozen, ids, mask, width)
        kl = (trainer.drawn - logps) * batch["completion_mask"]
        return kl.sum(1), kl.sum() / batch["completion_mask"].sum()

    def take(samples):
        trainer.samples = samples
        trainer.rewards = torch.tensor([float(s["reward"]) for s in samples])
        if "overlong_penalty_tokens" in case:
            cache = case["overlong_penalty_tokens"]
            penalty = get_soft_overlong_punishment(MAX_NEW_TOKENS, cache)
            trainer.rewards += torch.tensor(penalty([s["token_ids"] for s in samples]))
        # The generator has weights of `staleness` steps ago, as long as there were as many.
        versions.append(copy.deepcopy(model.state_dict()))
        kept["staleness"] = min(staleness, len(versions) - 1)
        generator.load_state_dict(versions[-1 - kept["staleness"]])
        version = len(versions) - kept["staleness"]
        told = [sample.get("weight_version", version) for sample in samples]
        assert iterations * parts > 1 or told == [version] * len(samples), told
        draw = case.get("temperature", 1.0), case.get("top_p", 1.0)
        trainer.drawn = drawn_from(generator, samples, *draw)
        batch = trainer._generate_and_score_completions([{"prompt": "p"}] * len(samples))
        if in_reward:
            of_sample, kept["kl"] = reference_kl(batch)
            trainer.rewards -= case["beta"] * of_sample
            batch = trainer._generate_and_score_completions([{"prompt": "p"}] * len(samples))
        assert ("old_per_token_logps" in batch) == (iterations > 1 or corrected)
        if (staleness or parts > 1) and not corrected:
            batch["old_per_token_logps"] = trainer.drawn
        if case.get("advantage") == "rloo":
            batch["advantages"] = rloo_advantages(trainer.rewards)
        if case.get("advantage") == "reinforce_plus_plus":
            centred = trainer.rewards - trainer.rewards.mean()
            batch["advantages"] = centred / (trainer.rewards.std() + 1e-4)
        kept["batch"], kept["part"] = batch, 0

        # The student has the weights that drew the samples.
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        width = batch["completion_ids"].shape[1]
        with torch.no_grad():
            logps, *_ = trainer._get_per_token_logps_and_entropies(model, ids, mask, width)
        own = "top_p" in case or staleness > 0 or "mask_truncated_completions" in case
        check_samples(samples, trainer.drawn if own else logps, case.get("rewards", REWARDS))

    def run(samples):
        if samples is not None:
            take(samples)
        count = PROMPTS * GENERATIONS
        first = kept["part"] % parts * count
        kept["part"] += 1
        mine = {
            key: value[first : first + count] if value.dim() > 0 else value
            for key, value in kept["batch"].items()
        }
        loss = trainer._compute_loss(model, mine)
        values = trainer._metrics["train"]
        metrics = {key: values[key][-1] for key in METRICS if key in values}
        if in_reward:
            metrics["kl"] = kept["kl"]
        return loss, metrics | ({"staleness": kept["staleness"]} if staleness else {})

    return run


def right_padded(values, labels, width, fill):
    """The values [S, T] at the labels that count, at the left of rows of `width`."""
    rows = []
    for value, label in zip(values, labels):
        kept = value[label != -100]
        rows.append(torch.cat([kept, torch.full((width - len(kept),), fill, dtype=value.dtype)]))
    return torch.stack(rows)


def token_batch(samples, ids, labels, advantages):
    """What GRPOTrainer._compute_loss reads: prompts padded on the left, completions padded on the
    right of their own blocks; an advantage for each token."""
    lengths = torch.tensor([len(s["token_ids"]) for s in samples])
    width = int(lengths.max())
    left = max(len(s["prompt_ids"]) for s in samples)
    pads = [left - len(s["prompt_ids"]) for s in samples]
    prompt_ids = [[PAD] * p + s["prompt_ids"] for p, s in zip(pads, samples)]
    return {
        "prompt_ids": torch.tensor(prompt_ids),
        "prompt_mask": torch.tensor([[0] * p + [1] * (left - p) for p in pads]),
        "completion_ids": right_padded(ids[:, 1:], labels, width, PAD),
        "completion_mask": (torch.arange(width)[None] < lengths[:, None]).long(),
        "advantages": right_padded(advantages, labels, width, 0.0),
        "num_items_in_batch": lengths.sum(),
    }


def distill_loss(model, frozen, case):
    trainer = make_replay(with_fused_head(model), None, 4, loss_type="dapo")

    def run(samples):
        ids, mask, labels = batch_of(samples)
        labels = labels[:, 1:]
        logits_of = lambda m: m(input_ids=ids, attention_mask=mask).logits[:, :-1]
        places = labels.clamp(min=0)[..., None]
        with torch.no_grad():
            logps_of = lambda m: torch.log_softmax(logits_of(m), -1).gather(2, places)[..., 0]
            own, teacher = logps_of(model), logps_of(frozen)
            check_samples(samples, [row[label != -100] for row, label in zip(own, labels)])

        # The divergence over the whole vocabulary.
        if not case.get("use_policy_gradient"):
            with torch.no_grad():
                teacher_logits = logits_of(frozen)
            options = dict(labels=labels, beta=1.0, temperature=case["temperature"])
            logits = logits_of(model)
            loss = GKDTrainer.generalized_jsd_loss(logits, teacher_logits, **options)
            return loss, {"kd_loss": loss.item()}

        # The policy gradient: how much more the teacher likes a token is its advantage.
        batch = token_batch(samples, ids, labels, teacher - own)
        loss = trainer._compute_loss(model, batch)
        reverse_kl = ((own - teacher) * (labels != -100)).sum().item()
        metrics = {"reverse_kl": reverse_kl / batch["num_items_in_batch"].item()}
        return loss, metrics | {"entropy": trainer._metrics["train"]["entropy"][-1]}

    return run


def train(make_loss, case, samples, steps):
    model = AutoModelForCausalLM.from_pretrained(OUT / "qwen3").float().train()
    frozen = AutoModelForCausalLM.from_pretrained(OUT / "teacher").float().eval()
    start, compute = own_parameters(model), make_loss(model, frozen, case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    record = {"loss": [], "grad_norm": []}
    for step in range(1, steps + 1):
        loss, metrics = compute(samples.get(step))
        optimizer.zero_grad()
        loss.backward()
        record["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        record["loss"].append(loss.item())
        for key, value in metrics.items():
            record.setdefault(key, []).append(float(value))
    return record, change_of(model, start)


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    make_prompts(OUT / "prompts.jsonl")
    before = json.loads((OUT / "policy.json").read_text())
    recorded = sys.argv[1:] if "RETORT_BIN" in os.environ else []
    cases = {name: (grpo_recipe(case), grpo_loss, case, 5) for name, case in GRPO.items()}
    cases |= {name: (distill_recipe(case), distill_loss, case, 3) for name, case in DISTILL.items()}

    expected, changes = {}, {}
    for name, (recipe, make_loss, case, steps) in cases.items():
        record_anew = name in recorded or recorded == ["all"]
        samples = record_samples(recipe) if record_anew else stored_samples(before[name])
        record, changes[name] = train(make_loss, case, samples, steps)
        stored = lambda step: [[sample[key] for key in SAMPLE] for sample in samples[step]]
        kept = {step: stored(step) for step in sorted(samples)}
        expected[name] = {"recipe": recipe, "samples": kept, **record}
        print(name, {key: [round(v, 4) for v in values] for key, values in record.items()})
    write_cases(OUT / "policy.json", expected)
    save_file(changes, OUT / "policy_changes.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
