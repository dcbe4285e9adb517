# Goldens for whole training runs: `./dev goldens`, or  python tests/recipes/make_goldens.py  with
# torch 2.11, transformers 5, tokenizers.
#
# Writes tests/recipes/goldens/: nano students of four families, a nano teacher, rows of token ids,
# and for every case the losses and gradient norms of 5 AdamW steps and what they changed, computed
# by a plain single-process PyTorch loop in fp32 on padded batches.
#
# changes.safetensors has a tensor for each case: final - initial parameters as float16, all of them
# (in the order of their sorted names) end to end. A change is below 6 * LR, so that its rounding is
# some 1e-6 of the parameters' norm.
import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

OUT = pathlib.Path(__file__).parent / "goldens"
VOCAB, STEPS, ROWS, LR = 64, 5, 4, 1e-3
PADDING_WEIGHT = -1.5


def save_tokenizer(folder):
    words = {f"w{i}": i for i in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<eos>": VOCAB - 1}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    # A word ends where the next begins, also without a space between prompt and completion.
    words_apart = Split(Regex("[a-z][0-9]+"), "isolated")
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), words_apart])
    special = dict(eos_token="<eos>", pad_token="<pad>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def build(name, config_class, model_class, seed, adjust=None, tokenizer=save_tokenizer, **extra):
    torch.manual_seed(seed)
    settings = dict(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.25,
        eos_token_id=VOCAB - 1,
        pad_token_id=VOCAB - 2,
        bos_token_id=None,
    )
    config = config_class(**(settings | extra))
    model = model_class(config).float().eval()
    if adjust is not None:
        with torch.no_grad():
            adjust(model)
    model.save_pretrained(OUT / name)
    tokenizer(OUT / name)
    return model


def make_rows(path):
    generator = torch.Generator().manual_seed(7)
    rows = []
    for i in range(ROWS * STEPS):
        length = int(torch.randint(6, 21, (1,), generator=generator))
        ids = torch.randint(0, VOCAB - 2, (length,), generator=generator).tolist()
        prompt = int(torch.randint(1, 4, (1,), generator=generator))
        labels = [-100] * prompt + ids[prompt:]
        rows.append({"input_ids": ids, "labels": labels, "domain": "ab"[i % 2]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def batch_of(rows):
    longest = max(len(r["input_ids"]) for r in rows)
    ids = torch.full((len(rows), longest), VOCAB - 2)
    labels = torch.full((len(rows), longest), -100)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, r in enumerate(rows):
        n = len(r["input_ids"])
        ids[i, :n] = torch.tensor(r["input_ids"])
        labels[i, :n] = torch.tensor(r["labels"])
        mask[i, :n] = 1
    return ids, labels, mask


def divergence(kind, q, p, beta=0.5, lam=0.1):
    """Per-row divergence of log-probabilities q (teacher) and p (student)."""
    kl = lambda a, b: (a.exp() * (a - b)).masked_fill(a == -torch.inf, 0).sum(-1)
    if kind == "forward_kl":
        return kl(q, p)
    if kind == "reverse_kl":
        return kl(p, q)
    log = lambda x: torch.log(torch.tensor(x))
    mix = lambda a, w: torch.logaddexp(q + log(a), p + log(w))
    if kind == "jsd":
        m = mix(beta, 1 - beta)
        return beta * kl(q, m) + (1 - beta) * kl(p, m)
    if kind == "skewed_kl":
        return kl(q, mix(lam, 1 - lam))
    if kind == "skewed_reverse_kl":
        return kl(p, mix(1 - lam, lam))
    if kind == "tvd":
        return 0.5 * (q.exp() - p.exp()).abs().sum(-1)
    raise ValueError(kind)


def kd_rows(case, teacher_logits, student_logits):
    # Ids beyond the tokenizer are not compared, whichever model has them.
    teacher_logits, student_logits = teacher_logits[:, :VOCAB], student_logits[:, :VOCAB]
    t = case.get("temperature", 1.0)
    q, p = (teacher_logits / t).log_softmax(-1), (student_logits / t).log_softmax(-1)
    kind = case["loss_type"]
    if case["payload"] != "topk":
        return divergence(kind, q, p)

    # The teacher's largest, and what becomes of the probability outside them.
    top, ids = q.topk(case["loss_top_k"], -1)
    picked = p.gather(-1, ids)
    if case["tail"] == "drop":
        return (top.exp() * (top - picked)).sum(-1)
    if case["tail"] == "renormalize":
        top = top - top.logsumexp(-1, keepdim=True)
        return (top.exp() * (top - picked)).sum(-1)
    tail = lambda x: x.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return divergence(kind, torch.cat([top, tail(q)], -1), torch.cat([picked, tail(p)], -1))


def own_parameters(model):
    """Detached copies by name; a tied head is the embedding."""
    tied = model.config.tie_word_embeddings
    kept = {k: v.detach().clone() for k, v in sorted(model.state_dict().items())}
    if tied:
        kept.pop("lm_head.weight", None)
    return kept


def change_of(model, start):
    now = own_parameters(model)
    return torch.cat([(now[k].double() - start[k].double()).flatten() for k in start]).half()


def write_cases(path, cases):
    """A JSON object of objects, a line for each of their fields."""
    blocks = []
    for name, case in cases.items():
        fields = [f'  "{key}": {json.dumps(value)}' for key, value in case.items()]
        blocks.append(f' "{name}": {{\n' + ",\n".join(fields) + "\n }")
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def run(model, rows, case, teacher=None):
    """Trains `model`; returns what a run reports, and its change."""
    start = own_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    record = {"losses": [], "kd": [], "ce": [], "grad_norms": []}
    for step in range(STEPS):
        # The cross-entropy of the tokens that are predicted.
        ids, labels, mask = batch_of(rows[step * ROWS : (step + 1) * ROWS])
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        wanted = labels[:, 1:] != -100
        logits, targets = logits[wanted], labels[:, 1:][wanted]
        ce = torch.nn.functional.cross_entropy(logits, targets)

        # With a teacher: mixed with the divergence at the same tokens.
        loss, kd = ce, torch.zeros(())
        if teacher is not None:
            with torch.no_grad():
                teacher_logits = teacher(input_ids=ids, attention_mask=mask).logits[:, :-1][wanted]
            kd = kd_rows(case, teacher_logits, logits).mean()
            ratio = case.get("kd_ratio", 1.0)
            loss = (1 - ratio) * ce + ratio * kd

        # The update.
        optimizer.zero_grad()
        loss.backward()
        record["grad_norms"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        record["losses"].append(float(loss))
        record["kd"].append(float(kd))
        record["ce"].append(float(ce))
    return record, change_of(model, start)


def lean_on_first_channel(model):
    """Padding rows of the head that take 1e-4 to 1e-3 of the probability: more is an error of the
    run, less would not be seen."""
    model.model.embed_tokens.weight[:, 0] += 4.0
    model.lm_head.weight[VOCAB:] = 0.0
    model.lm_head.weight[VOCAB:, 0] = PADDING_WEIGHT


def masked_mass(teacher, rows):
    ids, labels, mask = batch_of(rows)
    with torch.no_grad():
        logits = teacher(input_ids=ids, attention_mask=mask).logits[:, :-1]
        probabilities = logits[labels[:, 1:] != -100].softmax(-1)
        return probabilities[:, VOCAB:].sum(-1).mean().item()


# name: (config class, model class, seed, config overrides)
FAMILIES = {
    "llama": (
        LlamaConfig,
        LlamaForCausalLM,
        11,
        dict(tie_word_embeddings=False, attention_bias=True),
    ),
    "mistral": (
        MistralConfig,
        MistralForCausalLM,
        12,
        dict(sliding_window=6, tie_word_embeddings=False),
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, 13, dict(tie_word_embeddings=True)),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, 14, dict(tie_word_embeddings=True, head_dim=8)),
    # More rows than the tokenizer has ids, as published checkpoints are padded.
    "padded": (
        Qwen3Config,
        Qwen3ForCausalLM,
        15,
        dict(tie_word_embeddings=True, head_dim=8, vocab_size=VOCAB + 6),
    ),
}
HIDDEN, FULL = {"payload": "hidden_states"}, {"payload": "full"}
TOPK = {"payload": "topk", "loss_top_k": 8}
BUCKET = {**TOPK, "tail": "bucket"}
CASES = {
    "forward_hidden": {**HIDDEN, "loss_type": "forward_kl"},
    "forward_hidden_mix": {
        **HIDDEN,
        "loss_type": "forward_kl",
        "kd_ratio": 0.5,
        "temperature": 2.0,
    },
    "reverse_hidden": {**HIDDEN, "loss_type": "reverse_kl"},
    "jsd_full": {**FULL, "loss_type": "jsd"},
    "skewed_full": {**FULL, "loss_type": "skewed_kl"},
    "skewed_reverse_hidden": {**HIDDEN, "loss_type": "skewed_reverse_kl"},
    "tvd_hidden": {**HIDDEN, "loss_type": "tvd"},
    "forward_topk_bucket": {**BUCKET, "loss_type": "forward_kl"},
    "jsd_topk_bucket": {**BUCKET, "loss_type": "jsd", "temperature": 1.5},
    "reverse_topk_bucket": {**BUCKET, "loss_type": "reverse_kl"},
    "forward_topk_renormalize": {**TOPK, "tail": "renormalize", "loss_type": "forward_kl"},
    "forward_topk_drop": {**TOPK, "tail": "drop", "loss_type": "forward_kl"},
}
PADDED_CASES = {
    "padded_forward_hidden": {**HIDDEN, "loss_type": "forward_kl", "kd_ratio": 0.5},
    "padded_forward_topk_bucket": {**BUCKET, "loss_type": "forward_kl"},
    "padded_reverse_full": {**FULL, "loss_type": "reverse_kl", "temperature": 0.8},
}


def build_teachers(rows):
    """Two, of which the padded one gives a little probability to ids beyond the tokenizer."""
    llama = (LlamaConfig, LlamaForCausalLM)
    untied = dict(tie_word_embeddings=False)
    plain = build("teacher", *llama, 21, **untied)
    padding = dict(vocab_size=VOCAB + 2, adjust=lean_on_first_channel)
    padded = build("padded_teacher", *llama, 22, **untied, **padding)
    for step in range(STEPS):
        mass = masked_mass(padded, rows[step * ROWS : (step + 1) * ROWS])
        assert 1e-4 < mass < 9e-4, mass
    return plain, padded


def main():
    torch.use_deterministic_algorithms(True)
    OUT.mkdir(exist_ok=True)
    rows = make_rows(OUT / "rows.jsonl")
    expected, changes = {}, {}

    # SFT of each family.
    for name, (config, model, seed, extra) in FAMILIES.items():
        build(name, config, model, seed, **extra)
        student = model.from_pretrained(OUT / name).float()
        expected[f"sft_{name}"], changes[f"sft_{name}"] = run(student, rows, {})

    # Distillation from a teacher; then with vocabularies that are padded, on both sides.
    teacher, padded_teacher = build_teachers(rows)
    for name, case in CASES.items():
        student = Qwen3ForCausalLM.from_pretrained(OUT / "qwen3").float()
        record, changes[name] = run(student, rows, case, teacher)
        expected[name] = {"distill": case, **record}
    for name, case in PADDED_CASES.items():
        student = Qwen3ForCausalLM.from_pretrained(OUT / "padded").float()
        record, changes[name] = run(student, rows, case, padded_teacher)
        models = {"student": "padded", "teacher": "padded_teacher"}
        expected[name] = {**models, "distill": case, **record}

    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    save_file(changes, OUT / "changes.safetensors")


if __name__ == "__main__":
    main()
