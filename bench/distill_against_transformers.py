# Off-policy distillation steps of `retort launch` beside a plain transformers loop: same rows,
# models, batch, forward KL over the whole vocabulary, fp32, `--threads` threads in all.
#   python bench/distill_against_transformers.py --retort build/bin/retort --data train.jsonl \
#       [--steps 16] [--rounds 2] [--threads 2]
# Retort runs student and teacher in two processes of threads/2 threads each; the loop has both in
# one process, and padded batches. `--data`: JSONL with question/answer (GSM8K) or
# prompt/completion rows. Needs torch and transformers (`./dev goldens` makes such an environment).
from against import MAX_LENGTH, TRAIN, compare, init_model, launch, tokenize, train_loop
from against import train_tokenizer, write_rows

ROWS = 8


def prepare(args, work):
    write_rows(args.data, work / "rows.jsonl", args.steps * ROWS)
    train_tokenizer(args.retort, args.data, work / "tokenizer")
    init_model(args.retort, work / "tokenizer", work / "model")
    init_model(args.retort, work / "tokenizer", work / "teacher", hidden=448, inner=1256, seed=2)


def run_retort(args, work):
    each = max(1, args.threads // 2)
    recipe = f"""recipe: distill
output_dir: {work}/run
seed: 1
roles:
  student: {{model: {work}/model, world: {{threads: {each}}}}}
  teacher: {{model: {work}/teacher, world: {{threads: {each}}}}}
data:
  train: [{{path: {work}/rows.jsonl}}]
  max_length: {MAX_LENGTH}
  packing: false
  shuffle: false
distill: {{teachers: [{{role: teacher}}]}}
"""
    return launch(args.retort, work, recipe + TRAIN.format(steps=args.steps, rows=ROWS, rate=1e-4))


def run_transformers(args, work):
    import torch
    from transformers import AutoModelForCausalLM

    teacher = AutoModelForCausalLM.from_pretrained(work / "teacher", dtype=torch.float32).eval()

    def samples_of(tokenizer, rows):
        return [tokenize(tokenizer, row["prompt"], row["completion"]) for row in rows]

    def loss_of(model, ids, labels, mask):
        """KL(teacher || student) at the positions before targets."""
        with torch.no_grad():
            theirs = teacher(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        ours = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        wanted = labels[:, 1:] != -100
        divergence = (theirs.exp() * (theirs - ours)).sum(-1)
        return (divergence * wanted).sum() / wanted.sum()

    return train_loop(work, "rows.jsonl", args.steps, ROWS, 1e-4, samples_of, loss_of)


if __name__ == "__main__":
    compare(__file__, 16, prepare, run_retort, run_transformers)
