"""Goldens for adapters (LoRA): 5 AdamW steps of a plain loop around PEFT's own model, fp32, one
process, on padded batches.

Run:  python tests/recipes/make_lora_goldens.py
after make_goldens.py, make_preference_goldens.py and make_reward_goldens.py, whose models and rows
it uses (peft 0.21, transformers 5, trl 1.16.0, torch 2.11)

Writes into tests/recipes/goldens/: lora_qwen3/ and the others of ADAPTERS, adapters as PEFT saves
them, whose B's and modules_to_save are away from where PEFT begins (their base model is named from
their own folder, "../qwen3"); lora.json with
each case's recipe ($GOLDENS and $RUN stand for folders), what a run of it reports, and the
log-probabilities that PEFT gives to the first rows before and after it; lora_changes.safetensors
with a tensor for each case: final - initial factors as float16, all of them (in the order of their
sorted names in adapter_model.safetensors) end to end.

With a folder as argument it opens each adapter in it with PEFT instead and prints the
log-probabilities of the first rows.
"""

import json
import pathlib
import sys

import torch
from make_goldens import LR, OUT, ROWS, STEPS, batch_of, write_cases
from make_preference_goldens import PAIRS, make_pairs
from make_preference_goldens import batch_of as pair_batch
from make_reward_goldens import make_rows, padded
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl_pairs import METRICS, bare_dpo
from trl_stand_ins import with_fused_head

# Their base model, the recipes that train them, and what a recipe's lora block and a LoraConfig
# both have.
ADAPTERS = {
    "qwen3": ("qwen3", ["sft", "dpo"], dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "llama": (
        "llama",
        ["sft", "dpo"],
        dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"]),
    ),
    # fused projections: qkv_proj and gate_up_proj have one pair of factors each
    "phi3": ("phi3", ["sft"], dict(r=3, lora_alpha=5, target_modules="all-linear")),
    # some layers of the second layer alone
    "pattern": (
        "llama",
        ["sft"],
        dict(
            r=2,
            lora_alpha=3,
            use_rslora=True,
            target_modules=r".*\.1\.(self_attn\.(q|o)|mlp\.up)_proj",
        ),
    ),
    "saved": (
        "llama",
        ["sft", "dpo"],
        dict(
            r=2,
            lora_alpha=3,
            target_modules=["q_proj", "v_proj"],
            modules_to_save=["embed_tokens", "norm", "lm_head"],
        ),
    ),
    # its head is trained whole without being named
    "reward": (
        "reward_one",
        ["reward_model"],
        dict(r=2, lora_alpha=4, target_modules="all-linear"),
    ),
}

RECIPE = """\
recipe: {recipe}
output_dir: $RUN
seed: 3
roles:
  student:
    model: $GOLDENS/{model}
    world: {{dp: 1, threads: 1}}
    lora: {{{settings}, adapter: $GOLDENS/{adapter}}}
data:
  train: [{{path: $GOLDENS/{rows}}}]
  max_length: 64
  shuffle: false
{data}train:
  max_steps: 5
  per_device_train_batch_size: 4
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  save_steps: 0
{extra}"""


def base_model(name):
    kind = AutoModelForSequenceClassification if scores(name) else AutoModelForCausalLM
    return kind.from_pretrained(OUT / name).float()


def scores(base):
    return base.startswith("reward_")


def factors(model):
    return {k: v.detach().clone() for k, v in sorted(get_peft_model_state_dict(model).items())}


def recipe_value(value):
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    if isinstance(value, str) and value != "all-linear":
        return f"'{value}'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_adapter(name):
    base, _, settings = ADAPTERS[name]
    torch.manual_seed(31)
    config = LoraConfig(**settings, task_type="SEQ_CLS" if scores(base) else "CAUSAL_LM")
    model = get_peft_model(base_model(base), config)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key:
                value.normal_(0.0, 0.2)
            elif "modules_to_save" in key:
                value.add_(0.05 * torch.randn_like(value))
    folder = OUT / f"lora_{name}"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)

    # The same on every machine: the base model by its place, the targets in an order.
    file = folder / "adapter_config.json"
    saved = json.loads(file.read_text())
    saved["base_model_name_or_path"] = f"../{base}"
    if isinstance(saved["target_modules"], list):
        saved["target_modules"] = sorted(saved["target_modules"])
    file.write_text(json.dumps(saved, indent=2) + "\n")


def open_adapter(name):
    base = base_model(ADAPTERS[name][0])
    return PeftModel.from_pretrained(base, OUT / f"lora_{name}", is_trainable=True)


def first_rows(rows, model):
    """Of the first rows, the log-probability of each token but the first."""
    found = []
    with torch.no_grad():
        for row in rows[:ROWS]:
            ids = torch.tensor([row["input_ids"]])
            logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            found.append(logps.gather(-1, ids[0, 1:, None])[:, 0].tolist())
    return found


def sft_loss(model, rows, step):
    ids, labels, mask = batch_of(rows[step * ROWS : (step + 1) * ROWS])
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    wanted = labels[:, 1:] != -100
    return torch.nn.functional.cross_entropy(logits[wanted], labels[:, 1:][wanted]), {}


def dpo_loss(trainer, model, pairs, step):
    batch = pair_batch(pairs[step * PAIRS : (step + 1) * PAIRS])
    loss = trainer._compute_loss(model, dict(batch), False)
    return loss, {key: float(trainer._metrics["train"][key][-1]) for key in METRICS}


def reward_loss(model, pairs, step):
    """Bradley-Terry, as TRL's RewardTrainer has it."""
    some = pairs[step * PAIRS : (step + 1) * PAIRS]
    logits = model(**padded(some, model.config.pad_token_id), use_cache=False).logits
    chosen, rejected = logits.view(2, len(some))
    return -torch.nn.functional.logsigmoid(chosen - rejected).mean(), {}


def train(name, rows, pairs=None):
    """What a run reports, and the change of the factors. With pairs: dpo against the adapter that
    training begins with, of which TRL 1.16 keeps a copy ("ref") beside the trained one."""
    model = open_adapter(name).train()  # nothing in it has dropout
    start = factors(model)
    of_scores = scores(ADAPTERS[name][0])
    logps = {} if of_scores else {"logps_before": first_rows(rows, model)}
    trained = [value for value in model.parameters() if value.requires_grad]
    assert len(trained) == len(start), (len(trained), len(start))
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=0.0)
    if pairs is not None and not of_scores:
        model, reference = with_fused_head(model), with_fused_head(open_adapter(name).eval())
        options = dict(beta=0.1, label_smoothing=0.0, discopop_tau=0.05)
        trainer = bare_dpo(["sigmoid"], [1.0], model=model, ref_model=reference, **options)

    record = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        if of_scores:
            loss, metrics = reward_loss(model, pairs, step)
        elif pairs is None:
            loss, metrics = sft_loss(model, rows, step)
        else:
            loss, metrics = dpo_loss(trainer, model, pairs, step)
        optimizer.zero_grad()
        loss.backward()
        record["grad_norm"].append(float(torch.nn.utils.clip_grad_norm_(trained, 1.0)))
        record["loss"].append(float(loss))
        for key, value in metrics.items():
            record.setdefault(key, []).append(value)
        optimizer.step()

    now = factors(model)
    change = torch.cat([(now[k].double() - start[k].double()).flatten() for k in start]).half()
    if not of_scores:
        logps["logps_after"] = first_rows(rows, model)
    return {**record, **logps}, change


def print_opened(folder, rows):
    for path in sorted(folder.iterdir()):
        if (path / "adapter_config.json").exists():
            base = json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]
            model = PeftModel.from_pretrained(
                AutoModelForCausalLM.from_pretrained(base).float(), path
            )
            print(json.dumps({"adapter": path.name, "logps": first_rows(rows, model.eval())}))


def cases_of(name, rows, pairs):
    base, recipes, lora = ADAPTERS[name]
    text = ", ".join(f"{key}: {recipe_value(value)}" for key, value in lora.items())
    common = dict(model=base, settings=text, adapter=f"lora_{name}")
    sft = dict(recipe="sft", rows="rows.jsonl", data="  packing: false\n", extra="")
    dpo = dict(recipe="dpo", rows="pairs.jsonl", data="")
    dpo["extra"] = "dpo: {beta: 0.1, reference: student}\n"
    reward = dict(recipe="reward_model", rows="reward_pairs.jsonl", data="")
    reward["extra"] = "reward_model: {num_labels: 1}\n"
    for recipe in recipes:
        rows_of = {"sft": None, "dpo": pairs, "reward_model": make_rows() if scores(base) else None}
        record, change = train(name, rows, rows_of[recipe])
        own = {"sft": sft, "dpo": dpo, "reward_model": reward}[recipe]
        yield f"{recipe}_{name}", {"recipe": RECIPE.format(**common, **own), **record}, change


def main():
    rows = [json.loads(line) for line in (OUT / "rows.jsonl").read_text().splitlines()]
    if len(sys.argv) > 1:
        return print_opened(pathlib.Path(sys.argv[1]), rows)

    expected, changes = {}, {}
    pairs = make_pairs(OUT / "pairs.jsonl", 4)
    for name in ADAPTERS:
        make_adapter(name)
        for case, record, change in cases_of(name, rows, pairs):
            expected[case], changes[case] = record, change
    write_cases(OUT / "lora.json", expected)
    save_file(changes, OUT / "lora_changes.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
