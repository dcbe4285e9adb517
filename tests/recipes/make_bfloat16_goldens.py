"""Goldens for the first step of runs in bfloat16: the loss and every parameter's gradient, by
transformers' models in bfloat16 on the CPU, one process.

Run:  python tests/recipes/make_bfloat16_goldens.py
after make_goldens.py, whose models and rows it uses (transformers 5, trl 1.16.0, torch 2.11)

Writes into tests/recipes/goldens/: bfloat16.json with each case's recipe ($GOLDENS and $RUN stand
for folders) and the loss; bfloat16_gradients.safetensors with the gradients as transformers has
them, in bfloat16, by the name "<case>/<parameter>". Prints how far they are from transformers' own
in float32, of the same rounded weights.

Attention is transformers' default, sdpa. Logits are made float32 before a loss sees them, as
transformers' Trainer does with a model's outputs in bfloat16. The losses: of a token on average,
forward_kl over the vocabulary as make_goldens.py's, DPOTrainer._compute_loss.
"""

import json

import torch
import trl
from make_goldens import OUT, batch_of, kd_rows, write_cases
from make_preference_goldens import batch_of as pair_batch
from make_preference_goldens import make_pairs
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl_pairs import bare_dpo
from trl_stand_ins import with_fused_head

KD_RATIO, BETA = 0.7, 0.3

RECIPE = """\
recipe: {recipe}
output_dir: $RUN
seed: 3
roles:
  student: {{model: $GOLDENS/qwen3, dtype: bfloat16, world: {{dp: 1, threads: 1}}}}
{roles}data:
  train: [{{path: $GOLDENS/{rows}}}]
  max_length: 64
  shuffle: false
{packing}train:
  max_steps: 1
  per_device_train_batch_size: 20
  gradient_accumulation_steps: 1
  learning_rate: 1.0e-3
  lr_scheduler_type: constant
  max_grad_norm: 0
  save_steps: 0
{block}"""
FROZEN = "  {}: {{model: $GOLDENS/teacher, dtype: bfloat16, world: {{dp: 1, threads: 1}}}}\n"
DISTILL = f"distill: {{teachers: [{{role: teacher}}], payload: full, kd_ratio: {KD_RATIO}}}\n"

ROWS = dict(rows="rows.jsonl", packing="  packing: false\n")
PAIRS = dict(rows="pairs.jsonl", packing="")
RECIPES = {
    "sft": RECIPE.format(recipe="sft", **ROWS, roles="", block=""),
    "distill": RECIPE.format(
        recipe="distill", **ROWS, roles=FROZEN.format("teacher"), block=DISTILL
    ),
    "dpo": RECIPE.format(
        recipe="dpo", **PAIRS, roles=FROZEN.format("reference"), block=f"dpo: {{beta: {BETA}}}\n"
    ),
}


def float32_logits(module, arguments, output):
    if isinstance(output, CausalLMOutputWithPast):  # TRL's own head makes them float32 itself
        output.logits = output.logits.float()


def load(name, dtype):
    """The golden model with weights rounded to bfloat16, which computes in `dtype`."""
    options = dict(dtype=torch.bfloat16, attn_implementation="sdpa")
    model = AutoModelForCausalLM.from_pretrained(OUT / name, **options).eval()
    if dtype == torch.float32:
        model.float()

    # What from_pretrained leaves in float32, .to(bfloat16) would round: positions would be others.
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    model.register_forward_hook(float32_logits)
    return model


def rows_loss(student, teacher, rows):
    """The cross-entropy of the tokens that are predicted; with a teacher, mixed with KL."""
    ids, labels, mask = batch_of(rows)
    wanted = labels[:, 1:] != -100
    logits_of = lambda model: model(input_ids=ids, attention_mask=mask).logits[:, :-1][wanted]
    logits = logits_of(student)
    ce = torch.nn.functional.cross_entropy(logits, labels[:, 1:][wanted])
    if teacher is None:
        return ce

    with torch.no_grad():
        teacher_logits = logits_of(teacher)
    kd = kd_rows({"payload": "full", "loss_type": "forward_kl"}, teacher_logits, logits).mean()
    return (1 - KD_RATIO) * ce + KD_RATIO * kd


def pairs_loss(student, reference, pairs):
    student, reference = with_fused_head(student), with_fused_head(reference)
    options = dict(beta=BETA, label_smoothing=0.0)
    trainer = bare_dpo(["sigmoid"], [1.0], model=student, ref_model=reference, **options)
    return trainer._compute_loss(student, pair_batch(pairs), False)


def first_step(case, data, dtype):
    """The loss, and the gradients by name."""
    student = load("qwen3", dtype)
    frozen = None if case == "sft" else load("teacher", dtype)
    loss = (pairs_loss if case == "dpo" else rows_loss)(student, frozen, data)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in student.named_parameters()}


def furthest(got, wanted):
    """Over all parameters: |x - g| / |g| and |<x, g> / <g, g> - 1|."""
    relative = scale = 0.0
    for name, gradient in wanted.items():
        x, g = got[name].double(), gradient.double()
        squares = g.square().sum()
        relative = max(relative, ((x - g).square().sum() / squares).sqrt().item())
        scale = max(scale, abs(((x * g).sum() / squares).item() - 1))
    return f"{relative:.4f} off, {scale:.4f} too long or short"


def main():
    assert trl.__version__ == "1.16.0", trl.__version__
    rows = [json.loads(line) for line in (OUT / "rows.jsonl").read_text().splitlines()]
    pairs = make_pairs(OUT / "pairs.jsonl", 4)
    expected, gradients = {}, {}
    for case, recipe in RECIPES.items():
        data = pairs if case == "dpo" else rows
        loss, found = first_step(case, data, torch.bfloat16)
        assert all(g.dtype == torch.bfloat16 for g in found.values())
        expected[case] = {"recipe": recipe, "loss": loss}
        gradients |= {f"{case}/{name}": g for name, g in found.items()}

        exact_loss, exact = first_step(case, data, torch.float32)
        print(f"{case}: float32 has loss {exact_loss:.4f} for {loss:.4f};", furthest(found, exact))
    write_cases(OUT / "bfloat16.json", expected)
    save_file(gradients, OUT / "bfloat16_gradients.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
