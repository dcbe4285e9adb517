"""Goldens for whole dpo runs: 5 AdamW steps of a plain loop around TRL 1.16.0's own loss methods,
fp32, one process.

Run:  python tests/recipes/make_preference_goldens.py
after make_goldens.py, whose models it uses (trl 1.16.0, torch 2.11)

Writes into tests/recipes/goldens/: pairs.jsonl and short_pairs.jsonl (prompts of one token),
preference.json with each case's recipe ($GOLDENS and $RUN stand for folders) and what a run of it
reports, preference_changes.safetensors as make_goldens.py's. The losses: DPOTrainer._compute_loss,
CPOTrainer and ORPOTrainer.get_batch_loss_metrics. A string's completion ends with EOS.
"""

import json
import pathlib
import sys

import torch
import trl
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

sys.path.append(str(pathlib.Path(__file__).parent.parent / "losses"))
from make_goldens import LR, OUT, STEPS, VOCAB, change_of, own_parameters, write_cases  # noqa: E402
from trl_pairs import METRICS, bare_dpo  # noqa: E402
from trl_stand_ins import bare, with_fused_head  # noqa: E402

PAIRS, PAD, EOS = 4, VOCAB - 2, VOCAB - 1

RECIPE = """\
recipe: dpo
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/qwen3, world: {{dp: 1, threads: 1}}}}
{reference}data:
  train: [{{path: $GOLDENS/{rows}}}]
  max_length: 64
  shuffle: false
train:
  max_steps: 5
  per_device_train_batch_size: {pairs}
  gradient_accumulation_steps: {accumulation}
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
dpo: {dpo}
"""
REFERENCE = "  reference: {model: $GOLDENS/teacher, world: {dp: 1, threads: 1}}\n"


def make_pairs(path, longest_prompt):
    """Pairs of different lengths; some share the beginning of the completion, the last word is
    never EOS."""
    g = torch.Generator().manual_seed(17 + longest_prompt)
    number = lambda low, high: int(torch.randint(low, high, (1,), generator=g))
    words = lambda n: [number(0, PAD) for _ in range(n)]
    text = lambda ids: " ".join(f"w{i}" for i in ids)
    pairs = []
    for i in range(PAIRS * STEPS):
        prompt, shared = words(number(1, longest_prompt + 1)), words(i % 3)
        pairs.append((prompt, shared + words(number(1, 9)), shared + words(number(1, 9))))

    row = lambda p, c, r: {"prompt": text(p), "chosen": text(c), "rejected": text(r)}
    path.write_text("".join(json.dumps(row(*pair)) + "\n" for pair in pairs))
    return [(p, c + [EOS], r + [EOS]) for p, c, r in pairs]


def batch_of(pairs):
    """Chosen above rejected, padded on the right."""
    rows = [(p, c) for p, c, _ in pairs] + [(p, r) for p, _, r in pairs]
    longest = max(len(p) + len(c) for p, c in rows)
    ids, attention, completion = (torch.full((len(rows), longest), fill) for fill in (PAD, 0, 0))
    for i, (p, c) in enumerate(rows):
        n = len(p) + len(c)
        ids[i, :n] = torch.tensor(p + c)
        attention[i, :n] = 1
        completion[i, len(p) : n] = 1
    return {"input_ids": ids, "attention_mask": attention, "completion_mask": completion}


def two_sided(batch):
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    parts = {key: batch[key] for key in ("input_ids", "attention_mask")} | {"labels": labels}
    both = {}
    for side, rows in (("chosen", slice(0, PAIRS)), ("rejected", slice(PAIRS, None))):
        both |= {f"{side}_{key}": value[rows] for key, value in parts.items()}
    return both


def loss_function(model, reference, dpo):
    """batch -> (loss, metrics), by the trainer that has this loss."""
    losses, beta = dpo["loss_type"], dpo["beta"]

    # The losses without a reference have trainers of their own.
    if losses in (["simpo"], ["orpo"]):
        common = dict(pad_token_id=PAD, padding_value=PAD, beta=beta)
        common |= dict(is_encoder_decoder=False, aux_loss_enabled=False)
        if losses == ["orpo"]:
            trainer = bare(ORPOTrainer, **common)
        else:
            simpo = dict(loss_type="simpo", simpo_gamma=dpo["simpo_gamma"])
            simpo |= dict(alpha=0.0, label_smoothing=0.0, cpo_alpha=0.0)
            trainer = bare(CPOTrainer, **common, **simpo)
        return lambda batch: trainer.get_batch_loss_metrics(model, two_sided(batch))

    model, reference = with_fused_head(model), with_fused_head(reference)
    weights = dpo.get("loss_weights", [1.0] * len(losses))
    options = dict(beta=beta, label_smoothing=dpo.get("label_smoothing", 0.0))
    options["discopop_tau"] = dpo.get("discopop_tau", 0.05)
    trainer = bare_dpo(losses, weights, model=model, ref_model=reference, **options)

    def run(batch):
        loss = trainer._compute_loss(model, dict(batch), False)
        return loss, {key: values[-1] for key, values in trainer._metrics["train"].items()}

    return run


def train(pairs, dpo):
    model = AutoModelForCausalLM.from_pretrained(OUT / "qwen3").float().train()
    reference = AutoModelForCausalLM.from_pretrained(OUT / "teacher").float().eval()
    start, compute = own_parameters(model), loss_function(model, reference, dpo)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    record = {key: [] for key in ["loss", "grad_norm", *METRICS]}
    for step in range(STEPS):
        loss, metrics = compute(batch_of(pairs[step * PAIRS : (step + 1) * PAIRS]))
        optimizer.zero_grad()
        loss.backward()
        record["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        record["loss"].append(loss.item())
        for key in METRICS:
            record[key].append(float(metrics[key]))
    return record, change_of(model, start)


CASES = {
    "sigmoid": {"beta": 0.1, "loss_type": ["sigmoid"]},
    "sigmoid_sft": {"beta": 0.2, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7]},
    "ipo": {"beta": 0.5, "loss_type": ["ipo"]},
    "simpo": {"beta": 2.0, "loss_type": ["simpo"], "simpo_gamma": 0.8},
    "orpo": {"beta": 0.3, "loss_type": ["orpo"]},
    "apo_zero": {"beta": 0.1, "loss_type": ["apo_zero"]},
    "robust": {"beta": 0.1, "loss_type": ["robust"], "label_smoothing": 0.2},
    "exo_pair": {"beta": 0.3, "loss_type": ["exo_pair"], "label_smoothing": 0.1},
    "nca_pair": {"beta": 0.3, "loss_type": ["nca_pair"]},
    "bco_pair": {"beta": 0.1, "loss_type": ["bco_pair"]},
    "sppo_hard": {"beta": 0.5, "loss_type": ["sppo_hard"]},
    "aot": {"beta": 0.3, "loss_type": ["aot"], "label_smoothing": 0.1},
    "aot_unpaired": {"beta": 0.3, "loss_type": ["aot_unpaired"]},
    "discopop": {"beta": 0.2, "loss_type": ["discopop"], "discopop_tau": 0.3},
}
# Micro-batches change nothing, not even where pairs are sorted: these are trained in two.
IN_TWO = ("sigmoid_sft", "aot", "aot_unpaired")


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    # ORPOTrainer's cross-entropy is over prompt and completion: with one prompt token, which
    # nothing predicts, over the completion.
    rows = {
        "pairs.jsonl": make_pairs(OUT / "pairs.jsonl", 4),
        "short_pairs.jsonl": make_pairs(OUT / "short_pairs.jsonl", 1),
    }
    expected, changes = {}, {}
    for name, dpo in CASES.items():
        file = "short_pairs.jsonl" if name == "orpo" else "pairs.jsonl"
        accumulation = 2 if name in IN_TWO else 1
        recipe = RECIPE.format(
            reference="" if name in ("simpo", "orpo") else REFERENCE,
            rows=file,
            pairs=PAIRS // accumulation,
            accumulation=accumulation,
            dpo=json.dumps(dpo),
        )
        record, changes[name] = train(rows[file], dpo)
        expected[name] = {"recipe": recipe, **record}
    write_cases(OUT / "preference.json", expected)
    save_file(changes, OUT / "preference_changes.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
