"""Goldens of whole sft runs of families that differ most from Llama: 5 AdamW steps, fp32.

Run:  python tests/recipes/make_family_goldens.py
after make_goldens.py, whose rows and loop it uses (transformers 5, torch 2.11)

Writes into tests/recipes/goldens/: a nano student for each case, families.json with the losses and
gradient norms, families_changes.safetensors as make_goldens.py's changes.safetensors. Rows have 6
to 20 tokens: the windows of gemma2, gemma3 and phi3 lie among them, and the caps of gemma2 among
its scores and logits.
"""

import json

import torch
from make_goldens import OUT, build, run
from safetensors.torch import save_file
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

# name: (config class, model class, seed, config overrides)
CASES = {
    "yarn": (
        LlamaConfig,
        LlamaForCausalLM,
        31,
        dict(
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                beta_fast=2.0,
                original_max_position_embeddings=32,
            )
        ),
    ),
    "phi3": (
        Phi3Config,
        Phi3ForCausalLM,
        32,
        dict(
            sliding_window=6,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75
            ),
        ),
    ),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        34,
        dict(
            head_dim=8,
            query_pre_attn_scalar=12,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
            attn_logit_softcapping=3.0,
            final_logit_softcapping=1.0,
        ),
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        33,
        dict(
            head_dim=8,
            query_pre_attn_scalar=12,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=100000.0),
                sliding_attention=dict(rope_type="default", rope_theta=100.0),
            ),
        ),
    ),
}


def main():
    torch.use_deterministic_algorithms(True)
    rows = [json.loads(line) for line in (OUT / "rows.jsonl").read_text().splitlines()]
    expected, changes = {}, {}
    for name, (config, model, seed, extra) in CASES.items():
        build(name, config, model, seed, **extra)
        student = model.from_pretrained(OUT / name).float()
        expected[name], changes[name] = run(student, rows, {})
    (OUT / "families.json").write_text(json.dumps(expected, indent=1) + "\n")
    save_file(changes, OUT / "families_changes.safetensors")


if __name__ == "__main__":
    main()
