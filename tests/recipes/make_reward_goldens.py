"""Goldens for whole reward_model runs: 5 AdamW steps of a plain loop around TRL 1.16.0's own
RewardTrainer.compute_loss, fp32, one process.

Run:  python tests/recipes/make_reward_goldens.py
after make_preference_goldens.py, whose models and pairs it uses (trl 1.16.0, torch 2.11)

Writes into tests/recipes/goldens/: reward_one, reward_two and reward_eos, classifiers of one and
two labels and one that pads with its end token, as transformers saves them; reward_pairs.jsonl, the
rows of pairs.jsonl with margins, and reward_objectives.jsonl with objectives; reward.json with each
case's recipe ($GOLDENS and $RUN stand for folders) and what a run of it reports, and what
transformers' models score; reward_changes.safetensors as make_goldens.py's. TRL has one label; of
two the formula is written here.
"""

import json
import types

import torch
import trl
from make_goldens import LR, OUT, STEPS, change_of, own_parameters, save_tokenizer, write_cases
from make_preference_goldens import EOS, PAD, PAIRS, bare, batch_of
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl.trainer.reward_trainer import RewardTrainer

RECIPE = """\
recipe: reward_model
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/{model}, world: {{dp: 1, threads: 1}}}}
data:
  train: [{{path: $GOLDENS/{rows}}}]
  eval: [{{path: $GOLDENS/{rows}}}]
  max_length: 64
  shuffle: false
train:
  max_steps: 5
  per_device_train_batch_size: {pairs}
  gradient_accumulation_steps: {accumulation}
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
reward_model: {options}
"""
METRICS = ("accuracy", "margin", "mean_reward")


def save_model(name, labels, pad):
    """The language model qwen3 with a random head."""
    torch.manual_seed(23 + labels)
    model = AutoModelForSequenceClassification.from_pretrained(
        OUT / "qwen3", num_labels=labels, pad_token_id=pad
    )
    model.float().save_pretrained(OUT / name)
    save_tokenizer(OUT / name)
    if pad == EOS:
        tokenizer = AutoTokenizer.from_pretrained(OUT / name)
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.save_pretrained(OUT / name)


def make_rows():
    """The pairs as ids, with margins and objectives that files of rows get too."""
    rows, margins, objectives = [], [], []
    for i, line in enumerate((OUT / "pairs.jsonl").read_text().splitlines()):
        row, margin, objective = json.loads(line), round(0.3 * (i % 4) - 0.2, 1), i % 2
        ids = lambda text: [int(word[1:]) for word in text.split()]
        completions = [ids(row[side]) + [EOS] for side in ("chosen", "rejected")]
        rows.append((ids(row["prompt"]), *completions, margin, objective))
        margins.append(json.dumps(row | {"margin": margin}) + "\n")
        objectives.append(json.dumps(row | {"objective": objective}) + "\n")
    (OUT / "reward_pairs.jsonl").write_text("".join(margins))
    (OUT / "reward_objectives.jsonl").write_text("".join(objectives))
    return rows


def padded(rows, pad):
    batch = batch_of([row[:3] for row in rows])
    batch.pop("completion_mask")
    if pad != PAD:
        batch["input_ids"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, pad)
    return batch


def loss_of(model, rows, options, pad):
    """(loss, metrics) of a batch, by TRL unless it is about several labels."""
    batch = padded(rows, pad)
    if options.get("use_margin"):
        batch["margin"] = torch.tensor([row[3] for row in rows])
    if options.get("num_labels", 1) == 1:
        coefficient = options.get("center_rewards_coefficient")
        trainer = bare(
            RewardTrainer,
            model=model,
            args=types.SimpleNamespace(center_rewards_coefficient=coefficient),
            _total_train_tokens=0,
            _tp_size=1,
        )
        mode = "train" if model.training else "eval"
        loss = trainer.compute_loss(model, batch)
        return loss, {key: trainer._metrics[mode][key][-1] for key in METRICS}

    objectives = torch.tensor([row[4] for row in rows])
    scores = model(**batch, use_cache=False).logits.view(2, len(rows), -1)
    chosen, rejected = (side.gather(1, objectives[:, None])[:, 0] for side in scores)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
    means = dict(
        accuracy=(chosen > rejected).float().mean().item(),
        margin=(chosen - rejected).mean().item(),
        mean_reward=((chosen + rejected) / 2).mean().item(),
    )
    return loss, means


def train(rows, folder, options):
    model = AutoModelForSequenceClassification.from_pretrained(OUT / folder).float().train()
    pad = model.config.pad_token_id
    start = own_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    record = {key: [] for key in ["loss", "grad_norm", *METRICS]}
    for step in range(STEPS):
        loss, metrics = loss_of(model, rows[step * PAIRS : (step + 1) * PAIRS], options, pad)
        optimizer.zero_grad()
        loss.backward()
        record["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        record["loss"].append(loss.item())
        for key in METRICS:
            record[key].append(metrics[key])

    with torch.no_grad():
        loss, metrics = loss_of(model.eval(), rows, options, pad)
    record["eval_loss"] = [loss.item()]
    for key in METRICS:
        record[f"eval_{key}"] = [metrics[key]]
    return record, change_of(model, start)


def scores_of(folder, rows):
    """What transformers gives prompt + chosen of the first rows, as one padded batch."""
    model = AutoModelForSequenceClassification.from_pretrained(OUT / folder).float().eval()
    batch = padded(rows[:6], model.config.pad_token_id)
    with torch.no_grad():
        logits = model(**batch).logits
    ids = [prompt + chosen for prompt, chosen, *_ in rows[:6]]
    return {"ids": ids, "scores": logits[:6].tolist()}


# case -> the model it starts from, micro-batches of a step, options
CASES = {
    "bradley_terry": ("reward_one", 1, {"num_labels": 1}),
    "center": ("reward_one", 2, {"center_rewards_coefficient": 0.05}),
    "margin": ("reward_one", 1, {"use_margin": True}),
    "objectives": ("reward_two", 2, {"num_labels": 2}),
    "end_is_padding": ("reward_eos", 1, {"num_labels": 1}),
}


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    save_model("reward_one", 1, PAD)
    save_model("reward_two", 2, PAD)
    save_model("reward_eos", 1, EOS)
    rows = make_rows()
    expected, changes = {}, {}
    for name, (model, accumulation, options) in CASES.items():
        # Margins that are there are not looked at unless they are asked for.
        recipe = RECIPE.format(
            model=model,
            rows="reward_objectives.jsonl" if name == "objectives" else "reward_pairs.jsonl",
            pairs=PAIRS // accumulation,
            accumulation=accumulation,
            options=json.dumps(options),
        )
        record, changes[name] = train(rows, model, options)
        expected[name] = {"recipe": recipe, **record}
    folders = ("reward_one", "reward_two", "reward_eos")
    expected["scores"] = {folder: scores_of(folder, rows) for folder in folders}
    write_cases(OUT / "reward.json", expected)
    save_file(changes, OUT / "reward_changes.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
