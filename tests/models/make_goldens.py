# Makes tests/models/goldens/: nano checkpoints of the families and what transformers computes with
# them.
#   python tests/models/make_goldens.py [NAME ...] (torch 2.11, transformers 5, safetensors, numpy)
# Each folder holds the checkpoint (config.json, weights, generation_config.json) and
# reference.safetensors:
#   ids_0, ids_1       [T] int64     two sequences of different lengths
#   logps_0, logps_1   [T-1] fp32    log-probability of the next token
#   prompt             [P] int64     and greedy [64] int64: what generate() continues it with; all
#                                    top-1 margins exceed 1e-3
#   grad.<parameter>   fp32          of the mean next-token cross-entropy over the two sequences
#                                    together, computed in fp64; of tensors that Phi-3 keeps fused
#                                    part by part, by the names that other families give the parts
#   inverse_frequencies              of the rotary embedding (of short sequences)
#   sliding_inverse_frequencies      of Gemma 3's layers with a window
import json
import pathlib
import shutil
import sys
from unittest import mock

import torch
from safetensors.torch import save_file
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

torch.set_num_threads(1)
ROOT = pathlib.Path(__file__).parent / "goldens"
BASE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    attn_implementation="eager",
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)


def config(cls, **over):
    return cls(**{**BASE, **over})


# name: (config class, model class, config overrides, options)
CASES = {
    "llama": (LlamaConfig, LlamaForCausalLM, dict(rms_norm_eps=1e-5), {}),
    "llama3_rope": (
        LlamaConfig,
        LlamaForCausalLM,
        dict(rope_parameters=LLAMA3, tie_word_embeddings=True, eos_token_id=[2, 3]),
        dict(style=4),
    ),
    "llama_bias_linear": (
        LlamaConfig,
        LlamaForCausalLM,
        dict(
            attention_bias=True,
            mlp_bias=True,
            num_key_value_heads=4,
            head_dim=16,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
        ),
        dict(style=4),
    ),
    "mistral_window": (MistralConfig, MistralForCausalLM, dict(sliding_window=9, head_dim=12), {}),
    "mistral_sharded": (
        MistralConfig,
        MistralForCausalLM,
        dict(sliding_window=None, num_hidden_layers=3),
        dict(style=4, shard="24KB"),
    ),
    "qwen2": (
        Qwen2Config,
        Qwen2ForCausalLM,
        dict(tie_word_embeddings=True, vocab_size=160, pad_token_id=5),
        {},
    ),
    "qwen2_window_bf16": (
        Qwen2Config,
        Qwen2ForCausalLM,
        dict(use_sliding_window=True, sliding_window=7, max_window_layers=1, num_hidden_layers=3),
        dict(bf16=True, style=4),
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, dict(head_dim=16, tie_word_embeddings=True), {}),
    "qwen3_bias": (
        Qwen3Config,
        Qwen3ForCausalLM,
        dict(
            head_dim=8,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=11,
            layer_types=["sliding_attention", "full_attention"],
        ),
        dict(shard="20KB"),
    ),
    "llama_yarn": (
        LlamaConfig,
        LlamaForCausalLM,
        dict(
            head_dim=16,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                beta_fast=4.0,
                original_max_position_embeddings=128,
            ),
        ),
        dict(style=4),
    ),
    "qwen3_yarn_mscale": (
        Qwen3Config,
        Qwen3ForCausalLM,
        dict(
            head_dim=16,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=1000.0,
                factor=8.0,
                mscale=1.5,
                mscale_all_dim=0.5,
                truncate=False,
                original_max_position_embeddings=32,
            ),
        ),
        {},
    ),
    "llama_dynamic": (
        LlamaConfig,
        LlamaForCausalLM,
        dict(
            max_position_embeddings=80,
            rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=3.0),
        ),
        dict(lengths=(100, 14)),
    ),
    "phi3_partial": (
        Phi3Config,
        Phi3ForCausalLM,
        dict(
            sliding_window=9,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75
            ),
        ),
        {},
    ),
    "phi3_longrope": (
        Phi3Config,
        Phi3ForCausalLM,
        dict(
            tie_word_embeddings=True,
            pad_token_id=5,
            max_position_embeddings=320,
            original_max_position_embeddings=80,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.25, 2.0],
                long_factor=[1.5, 3.0, 8.0],
            ),
        ),
        dict(style=4, lengths=(100, 14)),
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        dict(
            num_hidden_layers=3,
            head_dim=8,
            initializer_range=0.1,  # a larger tied embedding repeats itself
            query_pre_attn_scalar=12,
            sliding_window=9,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            pad_token_id=5,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=100000.0),
                sliding_attention=dict(rope_type="default", rope_theta=1000.0),
            ),
        ),
        {},
    ),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        dict(
            head_dim=16,
            initializer_range=0.1,
            query_pre_attn_scalar=12,
            sliding_window=9,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=5.0,
        ),
        {},
    ),
}


def rewrite_style_4(path):
    c = json.loads(path.read_text())
    rope = c.pop("rope_parameters")
    c["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    c["torch_dtype"] = c.pop("dtype")
    path.write_text(json.dumps(c, indent=2, sort_keys=True) + "\n")


def next_logps(model, ids):
    logits = model(ids[None], use_cache=False).logits[0]
    return logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]


def greedy(model, prompt, steps=64):
    ids, smallest = prompt[None], float("inf")
    for _ in range(steps):
        top = model(ids, use_cache=False).logits[0, -1].float().topk(2)
        smallest = min(smallest, (top.values[0] - top.values[1]).item())
        ids = torch.cat([ids, top.indices[:1][None]], 1)
    return ids[0, len(prompt) :], smallest


def exact(model):
    """fp64 throughout: transformers' own norms and eager softmax would go back to fp32."""

    def norm(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))

    def gemma_norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)

    model.double()
    if model.config.model_type != "gemma2":
        model.set_attn_implementation("sdpa")
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            gemma = type(module).__name__.startswith("Gemma")
            module.forward = (gemma_norm if gemma else norm).__get__(module)


def softmax_of_any_dtype(x, dim=None, dtype=None):
    return x.softmax(dim)


def unfused(model, grads):
    """Phi-3's gradients part by part."""
    c, parts = model.config, {}
    head_dim = c.hidden_size // c.num_attention_heads
    q, kv = c.num_attention_heads * head_dim, c.num_key_value_heads * head_dim
    for key, grad in grads.items():
        if key.endswith("qkv_proj.weight"):
            split = zip(("q_proj", "k_proj", "v_proj"), grad.split([q, kv, kv]))
            parts |= {key.replace("qkv_proj", name): part for name, part in split}
        elif key.endswith("gate_up_proj.weight"):
            split = zip(("gate_proj", "up_proj"), grad.chunk(2))
            parts |= {key.replace("gate_up_proj", name): part for name, part in split}
        else:
            parts[key] = grad
    return parts


def draw_checkpoint(folder, seed, config_class, model_class, over, options):
    """Random weights; saved, and read back in fp32."""
    torch.manual_seed(seed)
    model = model_class(config(config_class, **over)).eval()
    with torch.no_grad():
        # Biases and norms that differ from their neutral values.
        for key, p in model.named_parameters():
            if key.endswith("bias"):
                p.normal_(0, 0.2)
            elif "norm" in key:
                offset = 1.0 if model.config.model_type.startswith("gemma") else 0.0
                p.uniform_(0.5 - offset, 1.5 - offset)
        if options.get("bf16"):
            model.to(torch.bfloat16)

    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=options.get("shard", "5GB"))
    load = dict(dtype=torch.float32, attn_implementation="eager")
    return model_class.from_pretrained(folder, **load).eval()


def generated(model, prompt):
    return model.generate(
        prompt[None],
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt) :]


def gradients(model, sequences):
    """(log-probabilities in fp32, loss, gradients in fp64, how far those in fp32 are from them)"""
    logps = [next_logps(model, ids) for ids in sequences]
    (-torch.cat(logps).mean()).backward()
    single = {key: p.grad.double() for key, p in model.named_parameters()}
    model.zero_grad()

    # In fp64, so that a difference is the tested code's alone.
    exact(model)
    with mock.patch.object(torch.nn.functional, "softmax", softmax_of_any_dtype):
        loss = -torch.cat([next_logps(model, ids) for ids in sequences]).mean()
        loss.backward()
    exact_grads = {key: p.grad for key, p in model.named_parameters()}
    distance = lambda key, grad: ((grad - single[key]).norm() / grad.norm()).item()
    worst = max(distance(key, grad) for key, grad in exact_grads.items())
    return [l.detach() for l in logps], loss.item(), exact_grads, worst


def build(name, config_class, model_class, over, options):
    folder = ROOT / name
    for seed in range(200):
        model = draw_checkpoint(folder, seed, config_class, model_class, over, options)

        # Tokens that neither repeat nor hang on a rounding error.
        vocab = model.config.vocab_size
        prompt = torch.randint(4, vocab, (5,))
        with torch.no_grad():
            tokens, margin = greedy(model, prompt)
            if margin <= 2e-3 or len(set(tokens.tolist())) < 12:
                continue
            assert generated(model, prompt).tolist() == tokens.tolist(), name

        # A pad token inside a sequence: its embedding gets no gradient.
        lengths = options.get("lengths", (37, 14))
        sequences = [torch.randint(4, vocab, (n,)) for n in lengths]
        if model.config.pad_token_id is not None:
            sequences[0][10] = model.config.pad_token_id

        # A gradient that nearly cancels says nothing about the code.
        rotary = model.model.rotary_emb
        reference = dict(prompt=prompt, greedy=tokens)
        if hasattr(rotary, "full_attention_inv_freq"):
            reference["inverse_frequencies"] = rotary.full_attention_inv_freq.float().clone()
            sliding = rotary.sliding_attention_inv_freq.float().clone()
            reference["sliding_inverse_frequencies"] = sliding
        else:
            reference["inverse_frequencies"] = rotary.inv_freq.float().clone()
        logps, loss, grads, worst = gradients(model, sequences)
        if worst > 4e-6:
            continue

        for i, ids in enumerate(sequences):
            reference[f"ids_{i}"] = ids
            reference[f"logps_{i}"] = logps[i]
        for key, grad in unfused(model, grads).items():
            reference["grad." + key] = grad.float()
        reference = {key: value.contiguous() for key, value in reference.items()}
        save_file(reference, folder / "reference.safetensors")
        if options.get("style") == 4:
            rewrite_style_4(folder / "config.json")
        fp32 = f"fp32 gradients of transformers {worst}"
        print(f"{name} seed {seed} margin {margin} loss {loss} {fp32}")
        return
    raise SystemExit(f"{name}: no seed gives margins above 1e-3")


for name in sys.argv[1:] or CASES:
    build(name, *CASES[name])
