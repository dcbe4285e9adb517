# SFT tokens per second of `retort launch` beside a plain transformers training loop: same rows,
# model, batch; on a CPU as many threads and fp32, on a GPU bfloat16.
#   python bench/sft_against_transformers.py --retort build/bin/retort --data train.jsonl \
#       [--steps 16] [--rounds 2] [--threads 2] [--device cuda]
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. Needs torch and
# transformers (`./dev goldens` makes such a venv).
from against import MAX_LENGTH, SHAPES, TRAIN, compare, init_model, launch, role
from against import rows_of_step, tokenize, train_loop, train_tokenizer, vocab_size, write_rows


def prepare(args, work):
    write_rows(args.data, work / "rows.jsonl", args.steps * rows_of_step(args))
    train_tokenizer(args.retort, args.data, work / "tokenizer", vocab_size(args))
    shape = SHAPES[args.device, "model"]
    init_model(args.retort, work / "tokenizer", work / "model", shape)


def run_retort(args, work):
    recipe = f"""recipe: sft
output_dir: {work}/run
seed: 1
roles: {{student: {role(args, work / "model", args.threads)}}}
data:
  train: [{{path: {work}/rows.jsonl}}]
  max_length: {MAX_LENGTH}
  packing: false
  shuffle: false
"""
    recipe += TRAIN.format(steps=args.steps, rows=rows_of_step(args), rate=1e-4)
    return launch(args, work, recipe)


def run_transformers(args, work):
    def samples_of(tokenizer, rows):
        return [tokenize(tokenizer, row["prompt"], row["completion"]) for row in rows]

    def loss_of(model, ids, labels, mask):
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    return train_loop(args, work, "rows.jsonl", rows_of_step(args), 1e-4, samples_of, loss_of)


if __name__ == "__main__":
    compare(__file__, 16, prepare, run_retort, run_transformers)
