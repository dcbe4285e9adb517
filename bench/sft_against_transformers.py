# SFT tokens per second of `retort launch` beside a plain transformers training loop: same rows,
# model, batch, threads, fp32.
#   python bench/sft_against_transformers.py --retort build/bin/retort --data train.jsonl \
#       [--steps 16] [--rounds 2] [--threads 2]
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. Needs torch and
# transformers (`./dev goldens` makes such a venv).
from against import MAX_LENGTH, TRAIN, compare, init_model, launch, tokenize, train_loop
from against import train_tokenizer, write_rows

ROWS = 8


def prepare(args, work):
    write_rows(args.data, work / "rows.jsonl", args.steps * ROWS)
    train_tokenizer(args.retort, args.data, work / "tokenizer")
    init_model(args.retort, work / "tokenizer", work / "model")


def run_retort(args, work):
    recipe = f"""recipe: sft
output_dir: {work}/run
seed: 1
roles: {{student: {{model: {work}/model, world: {{threads: {args.threads}}}}}}}
data:
  train: [{{path: {work}/rows.jsonl}}]
  max_length: {MAX_LENGTH}
  packing: false
  shuffle: false
"""
    return launch(args.retort, work, recipe + TRAIN.format(steps=args.steps, rows=ROWS, rate=1e-4))


def run_transformers(args, work):
    def samples_of(tokenizer, rows):
        return [tokenize(tokenizer, row["prompt"], row["completion"]) for row in rows]

    def loss_of(model, ids, labels, mask):
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    return train_loop(work, "rows.jsonl", args.steps, ROWS, 1e-4, samples_of, loss_of)


if __name__ == "__main__":
    compare(__file__, 16, prepare, run_retort, run_transformers)
