"""Goldens for whole kto runs: 5 AdamW steps of a plain loop around TRL 1.16.0's own KTOTrainer
methods, fp32, one process.

Run:  python tests/recipes/make_kto_goldens.py
after make_goldens.py, whose models it uses (trl 1.16.0, torch 2.11)

Writes into tests/recipes/goldens/: labels.jsonl, kto.json with each case's recipe ($GOLDENS and
$RUN stand for folders) and what a run of it reports, kto_changes.safetensors as make_goldens.py's.
Mismatched completions: the one before in each batch, which is a global batch here, as
KTOTrainer._prepare_dataset takes them. Batches: DataCollatorForUnpairedPreference. Losses:
KTOTrainer._compute_loss. A string's completion ends with EOS. A metric of a label is listed for the
steps that have rows of it. make_trainer_goldens.py has the whole trainer.
"""

import json
import pathlib
import sys

import torch
import trl
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

sys.path.append(str(pathlib.Path(__file__).parent.parent / "losses"))
from make_goldens import LR, OUT, STEPS, VOCAB, change_of, own_parameters, write_cases  # noqa: E402
from trl_kto import METRICS, bare_kto  # noqa: E402
from trl_stand_ins import with_fused_head  # noqa: E402

ROWS, PAD, EOS = 4, VOCAB - 2, VOCAB - 1

RECIPE = """\
recipe: kto
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/qwen3, world: {{dp: 1, threads: 1}}}}
  reference: {{model: $GOLDENS/{reference}, world: {{dp: 1, threads: 1}}}}
data:
  train: [{{path: $GOLDENS/labels.jsonl}}]
  max_length: {max_length}
  shuffle: false
train:
  max_steps: 5
  per_device_train_batch_size: {rows}
  gradient_accumulation_steps: {accumulation}
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
kto: {kto}
"""


def make_rows(path):
    """Completions of different lengths, of which none ends with EOS by itself; the third batch has
    no desirable row."""
    g = torch.Generator().manual_seed(29)
    number = lambda low, high: int(torch.randint(low, high, (1,), generator=g))
    words = lambda n: [number(0, PAD) for _ in range(n)]
    text = lambda ids: " ".join(f"w{i}" for i in ids)
    rows = []
    for i in range(ROWS * STEPS):
        label = i // ROWS != 2 and (i % ROWS == 0 or number(0, 3) > 0)
        rows.append((words(number(1, 6)), words(number(1, 11)), label))

    row = lambda p, c, label: {"prompt": text(p), "completion": text(c), "label": label}
    path.write_text("".join(json.dumps(row(*one)) + "\n" for one in rows))
    return [(p, c + [EOS], label) for p, c, label in rows]


def batch_of(rows, max_length):
    """What TRL trains on, where these rows are one of its batches."""
    examples = []
    for (prompt, completion, label), (_, other, _) in zip(rows, rows[-1:] + rows[:-1]):
        ids = {"prompt_ids": prompt, "completion_ids": completion, "KL_completion_ids": other}
        examples.append(ids | {"label": label})
    return DataCollatorForUnpairedPreference(PAD, max_length).torch_call(examples)


def train(rows, case, max_length):
    model = AutoModelForCausalLM.from_pretrained(OUT / "qwen3").float().train()
    frozen = AutoModelForCausalLM.from_pretrained(OUT / case["reference"]).float().eval()
    start = own_parameters(model)
    models = dict(model=with_fused_head(model), ref_model=with_fused_head(frozen))
    trainer = bare_kto(**models, **case["kto"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    record = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        batch = batch_of(rows[step * ROWS : (step + 1) * ROWS], max_length)
        loss = trainer._compute_loss(model, batch, False)
        optimizer.zero_grad()
        loss.backward()
        record["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        record["loss"].append(loss.item())
    for key in METRICS:
        record[key] = trainer._metrics["train"][key]
    if case["kto"]["loss_type"] != "kto":
        del record["kl"]  # TRL's is always 0 there
    return record, change_of(model, start)


def kto(loss_type="kto", beta=0.1, desirable_weight=1.0, undesirable_weight=1.0):
    options = {"beta": beta, "loss_type": loss_type, "desirable_weight": desirable_weight}
    return options | {"undesirable_weight": undesirable_weight}


CASES = {
    "kto": {"reference": "teacher", "kto": kto()},
    "weights": {
        "reference": "llama",
        "accumulation": 2,
        "kto": kto(beta=0.3, desirable_weight=0.8, undesirable_weight=1.6),
    },
    "cut": {"reference": "teacher", "max_length": 9, "kto": kto(beta=0.2)},
    "apo_zero_unpaired": {"reference": "teacher", "kto": kto("apo_zero_unpaired", beta=0.2)},
}


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    rows = make_rows(OUT / "labels.jsonl")
    expected, changes = {}, {}
    for name, case in CASES.items():
        # Micro-batches change nothing: one case is trained in two.
        accumulation = case.get("accumulation", 1)
        max_length = case.get("max_length", 64)
        recipe = RECIPE.format(
            reference=case["reference"],
            max_length=max_length,
            rows=ROWS // accumulation,
            accumulation=accumulation,
            kto=json.dumps(case["kto"]),
        )
        record, changes[name] = train(rows, case, max_length)
        expected[name] = {"recipe": recipe, **record}
    write_cases(OUT / "kto.json", expected)
    save_file(changes, OUT / "kto_changes.safetensors")

    # The cases show what they are for: z above 0 and clamped to 0, completions cut or not.
    estimates = expected["kto"]["kl"] + expected["weights"]["kl"] + expected["cut"]["kl"]
    assert min(estimates) == 0 and max(estimates) > 0.1, estimates
    assert any(len(prompt) + len(completion) > 9 for prompt, completion, _ in rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
