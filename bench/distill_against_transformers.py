# Off-policy distillation steps of `retort launch` beside a plain transformers loop: same rows,
# models, batch, forward KL over the whole vocabulary; on a CPU fp32 and `--threads` threads in all,
# on a GPU bfloat16, both models of either side on the one.
#   python bench/distill_against_transformers.py --retort build/bin/retort --data train.jsonl \
#       [--steps 16] [--rounds 2] [--threads 2] [--device cuda]
# Retort runs student and teacher in two processes of threads/2 threads each; the loop has both in
# one process, and padded batches. `--data`: JSONL with question/answer (GSM8K) or
# prompt/completion rows. Needs torch and transformers (`./dev goldens` makes such an environment).
from against import MAX_LENGTH, SHAPES, TRAIN, compare, init_model, launch, load_model, role
from against import rows_of_step, tokenize, train_loop, train_tokenizer, vocab_size, write_rows


def prepare(args, work):
    write_rows(args.data, work / "rows.jsonl", args.steps * rows_of_step(args))
    train_tokenizer(args.retort, args.data, work / "tokenizer", vocab_size(args))
    for name in ("model", "teacher"):
        shape = SHAPES[args.device, name]
        init_model(args.retort, work / "tokenizer", work / name, shape)


def run_retort(args, work):
    each = max(1, args.threads // 2)
    recipe = f"""recipe: distill
output_dir: {work}/run
seed: 1
roles:
  student: {role(args, work / "model", each)}
  teacher: {role(args, work / "teacher", each)}
data:
  train: [{{path: {work}/rows.jsonl}}]
  max_length: {MAX_LENGTH}
  packing: false
  shuffle: false
distill: {{teachers: [{{role: teacher}}]}}
"""
    if args.device == "cuda":
        recipe += "rpc: {device_maps: {teacher: {0: 0}}}\n"
    recipe += TRAIN.format(steps=args.steps, rows=rows_of_step(args), rate=1e-4)
    return launch(args, work, recipe)


def run_transformers(args, work):
    import torch

    teacher = load_model(args, work / "teacher").eval()

    def samples_of(tokenizer, rows):
        return [tokenize(tokenizer, row["prompt"], row["completion"]) for row in rows]

    def loss_of(model, ids, labels, mask):
        """KL(teacher || student) at the positions before targets."""
        with torch.no_grad():
            logits = teacher(input_ids=ids, attention_mask=mask).logits
            theirs = logits[:, :-1].float().log_softmax(-1)
        ours = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float().log_softmax(-1)
        wanted = labels[:, 1:] != -100
        divergence = (theirs.exp() * (theirs - ours)).sum(-1)
        return (divergence * wanted).sum() / wanted.sum()

    return train_loop(args, work, "rows.jsonl", rows_of_step(args), 1e-4, samples_of, loss_of)


if __name__ == "__main__":
    compare(__file__, 16, prepare, run_retort, run_transformers)
