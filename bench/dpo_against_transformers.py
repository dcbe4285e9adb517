# DPO tokens per second of `retort launch` beside a plain transformers training loop: same pairs,
# model, batch; on a CPU as many threads in all and fp32, on a GPU bfloat16.
#   python bench/dpo_against_transformers.py --retort build/bin/retort \
#       --data example_model_solutions.jsonl [--steps 14] [--rounds 2] [--threads 2] \
#       [--device cuda]
# `--data`: JSONL with prompt/chosen/rejected rows, or GSM8K's example solutions. Retort runs the
# student and the reference in two processes of threads/2 threads each; the loop holds both models
# in one process. Needs torch and transformers.
import json

from against import MAX_LENGTH, SHAPES, TRAIN, compare, init_model, launch, load_model, role
from against import rows_of_step, tokenize, train_loop, train_tokenizer, vocab_size, write_jsonl

BETA = 0.1


def read_pairs(source):
    for line in open(source):
        row = json.loads(line)
        if "chosen" in row:
            yield {key: row[key] for key in ("prompt", "chosen", "rejected")}
            continue
        solutions = [value for value in row.values() if isinstance(value, dict)]
        good = [s["solution"] for s in solutions if s["is_correct"]]
        bad = [s["solution"] for s in solutions if not s["is_correct"]]
        for chosen, rejected in zip(good, bad):
            yield {"prompt": row["question"] + "\n", "chosen": chosen, "rejected": rejected}


def prepare(args, work):
    pairs = [pair for _, pair in zip(range(args.steps * rows_of_step(args)), read_pairs(args.data))]
    write_jsonl(work / "pairs.jsonl", pairs)
    write_jsonl(work / "texts.jsonl", [{"text": " ".join(pair.values())} for pair in pairs])
    train_tokenizer(args.retort, work / "texts.jsonl", work / "tokenizer", vocab_size(args))
    shape = SHAPES[args.device, "model"]
    init_model(args.retort, work / "tokenizer", work / "model", shape)


def run_retort(args, work):
    each = max(1, args.threads // 2)
    recipe = f"""recipe: dpo
output_dir: {work}/run
roles:
  student: {role(args, work / "model", each)}
  reference: {role(args, work / "model", each)}
data: {{train: [{{path: {work}/pairs.jsonl}}], max_length: {MAX_LENGTH}, shuffle: false}}
dpo: {{beta: {BETA}}}
"""
    recipe += TRAIN.format(steps=args.steps, rows=rows_of_step(args), rate=1e-5)
    return launch(args, work, recipe)


def run_transformers(args, work):
    import torch
    import torch.nn.functional as F

    reference = load_model(args, work / "model").eval()
    pairs = rows_of_step(args)

    def samples_of(tokenizer, rows):
        """The chosen completions, then the rejected ones."""
        each = [(row["prompt"], row[key]) for key in ("chosen", "rejected") for row in rows]
        return [tokenize(tokenizer, *one) for one in each]

    def log_probs(model, ids, mask, labels):
        logps = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float().log_softmax(-1)
        target = labels[:, 1:]
        picked = logps.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return (picked * (target != -100)).sum(-1)

    def loss_of(model, ids, labels, mask):
        with torch.no_grad():
            ref = log_probs(reference, ids, mask, labels)
        delta = log_probs(model, ids, mask, labels) - ref
        return -F.logsigmoid(BETA * (delta[:pairs] - delta[pairs:])).mean()

    return train_loop(args, work, "pairs.jsonl", pairs, 1e-5, samples_of, loss_of)


if __name__ == "__main__":
    compare(__file__, 14, prepare, run_retort, run_transformers)
