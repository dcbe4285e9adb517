"""Goldens for the options of the optimizer and its schedule: 5 steps of a plain loop with torch's
AdamW in transformers' parameter groups, fp32, one process.

Run:  python tests/recipes/make_option_goldens.py
after make_goldens.py, whose rows it uses (transformers 5, torch 2.11)

Writes into tests/recipes/goldens/: biased/, a nano student whose norms and biases are away from 1
and 0, so that their decay shows; options.json with each case's recipe ($GOLDENS and $RUN stand for
folders) and what a run of it reports, options_changes.safetensors as make_goldens.py's. Parameters
without decay: Trainer.get_decay_parameter_names. Schedules: transformers', with `min_lr` between
them and 0. `others` are settings of which each alone must give another run.
"""

import json
import math

import torch
from make_goldens import LR, OUT, ROWS, batch_of, build, change_of, own_parameters, write_cases
from safetensors.torch import save_file
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
    get_constant_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

STEPS = 5

RECIPE = """\
recipe: sft
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/biased, world: {{dp: 1, threads: 1}}}}
data:
  train: [{{path: $GOLDENS/rows.jsonl}}]
  max_length: 64
  packing: false
  shuffle: false
train:
  max_steps: 5
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 2
  learning_rate: 1.0e-3
  save_steps: 0
{train}"""


def away_from_one_and_zero(model):
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            value.normal_(0.0, 0.5)
        elif name.endswith("norm.weight"):
            value.add_(torch.randn_like(value) * 0.3)


def groups(model, case):
    """AdamW's: with decay and without, by the kinds of `no_decay`."""
    kept = set(Trainer.get_decay_parameter_names(None, model))
    everything = {name for name, _ in model.named_parameters()}
    exempt = everything - kept
    assert {name.rsplit(".", 1)[1] for name in exempt} == {"weight", "bias"}
    kinds = case.get("no_decay", ["norm", "bias"])
    exempt = {n for n in exempt if ("bias" if n.endswith("bias") else "norm") in kinds}
    pick = lambda names: [p for n, p in model.named_parameters() if n in names]
    return [
        {"params": pick(everything - exempt), "weight_decay": case.get("weight_decay", 0.0)},
        {"params": pick(exempt), "weight_decay": 0.0},
    ]


def schedule(optimizer, case):
    total = case.get("lr_decay_steps", STEPS)
    warmup = case.get("warmup_steps", math.ceil(case.get("warmup_ratio", 0) * total))
    least = case.get("min_lr", 0.0)
    kind = case.get("lr_scheduler_type", "cosine")
    if kind == "cosine":
        return get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, total, min_lr=least)
    if kind == "constant":
        return get_constant_schedule_with_warmup(optimizer, warmup)

    # Its own has no `min_lr`: the same factors, from it to 1.
    rates = get_linear_schedule_with_warmup(optimizer, warmup, total)
    share, floor = rates.lr_lambdas[0], least / LR
    rates.lr_lambdas = [
        lambda step: share(step) if step < warmup else floor + (1 - floor) * share(step)
    ] * len(rates.lr_lambdas)
    return rates


def train(rows, case):
    model = Qwen3ForCausalLM.from_pretrained(OUT / "biased").float()
    start = own_parameters(model)
    optimizer = torch.optim.AdamW(
        groups(model, case),
        lr=LR,
        betas=(case.get("adam_beta1", 0.9), case.get("adam_beta2", 0.999)),
        eps=case.get("adam_epsilon", 1e-8),
    )
    rates = schedule(optimizer, case)
    record = {"loss": [], "grad_norm": [], "learning_rate": []}
    for step in range(STEPS):
        ids, labels, mask = batch_of(rows[step * ROWS : (step + 1) * ROWS])
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        wanted = labels[:, 1:] != -100
        loss = torch.nn.functional.cross_entropy(logits[wanted], labels[:, 1:][wanted])
        optimizer.zero_grad()
        loss.backward()
        most = case.get("max_grad_norm", 1.0) or math.inf
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        record["loss"].append(loss.item())
        record["grad_norm"].append(float(norm))
        record["learning_rate"].append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.step()
    return record, change_of(model, start)


CASES = {
    "linear": {
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
        "min_lr": 2e-4,
        "adam_beta1": 0.8,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-3,
        "weight_decay": 1.0,
        "max_grad_norm": 0.5,
    },
    "cosine": {
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.25,
        "min_lr": 1e-4,
        "lr_decay_steps": 4,
        "weight_decay": 1.0,
        "no_decay": [],
    },
    "constant": {
        "lr_scheduler_type": "constant",
        "warmup_steps": 2,
        "weight_decay": 1.0,
        "no_decay": ["bias"],
        "max_grad_norm": 0,
    },
}
# What these options are where nobody sets them, or another value that is as easily taken.
OTHERS = {
    "lr_scheduler_type": ["linear", "cosine"],
    "warmup_steps": ["0", "1"],
    "warmup_ratio": ["0"],
    "min_lr": ["0"],
    "lr_decay_steps": ["null"],
    "adam_beta1": ["0.9"],
    "adam_beta2": ["0.999"],
    "adam_epsilon": ["1.0e-8"],
    "weight_decay": ["0.99"],
    "no_decay": ["[norm, bias]", "[norm]"],
    "max_grad_norm": ["1"],
}


def main():
    biased = dict(tie_word_embeddings=True, head_dim=8, attention_bias=True)
    build("biased", Qwen3Config, Qwen3ForCausalLM, 16, away_from_one_and_zero, **biased)
    rows = [json.loads(line) for line in (OUT / "rows.jsonl").read_text().splitlines()]
    expected, changes = {}, {}
    for name, case in CASES.items():
        lines = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in case.items())
        record, changes[name] = train(rows, case)
        others = [
            f"train.{key}={value}"
            for key in case
            for value in OTHERS[key]
            if value != str(case[key])
        ]
        expected[name] = {"recipe": RECIPE.format(train=lines), **record, "others": others}
    write_cases(OUT / "options.json", expected)
    save_file(changes, OUT / "options_changes.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
