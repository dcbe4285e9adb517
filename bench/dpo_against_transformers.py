# DPO tokens per second of `retort launch` beside a plain transformers training loop: same pairs,
# model, batch, threads in all, fp32.
#   python bench/dpo_against_transformers.py --retort build/bin/retort \
#       --data example_model_solutions.jsonl [--steps 14] [--rounds 2] [--threads 2]
# `--data`: JSONL with prompt/chosen/rejected rows, or GSM8K's example solutions. Retort runs the
# student and the reference in two processes of threads/2 threads each; the loop holds both models
# in one process. Needs torch and transformers.
import json

from against import MAX_LENGTH, TRAIN, compare, init_model, launch, tokenize, train_loop
from against import train_tokenizer, write_jsonl

PAIRS, BETA = 8, 0.1


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
    pairs = [pair for _, pair in zip(range(args.steps * PAIRS), read_pairs(args.data))]
    write_jsonl(work / "pairs.jsonl", pairs)
    write_jsonl(work / "texts.jsonl", [{"text": " ".join(pair.values())} for pair in pairs])
    train_tokenizer(args.retort, work / "texts.jsonl", work / "tokenizer")
    init_model(args.retort, work / "tokenizer", work / "model", arch="qwen2")


def run_retort(args, work):
    each = max(1, args.threads // 2)
    recipe = f"""recipe: dpo
output_dir: {work}/run
roles:
  student: {{model: {work}/model, world: {{threads: {each}}}}}
  reference: {{model: {work}/model, world: {{threads: {each}}}}}
data: {{train: [{{path: {work}/pairs.jsonl}}], max_length: {MAX_LENGTH}, shuffle: false}}
dpo: {{beta: {BETA}}}
"""
    return launch(args.retort, work, recipe + TRAIN.format(steps=args.steps, rows=PAIRS, rate=1e-5))


def run_transformers(args, work):
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32).eval()

    def samples_of(tokenizer, rows):
        """The chosen completions, then the rejected ones."""
        each = [(row["prompt"], row[key]) for key in ("chosen", "rejected") for row in rows]
        return [tokenize(tokenizer, *one) for one in each]

    def log_probs(model, ids, mask, labels):
        logps = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        target = labels[:, 1:]
        picked = logps.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return (picked * (target != -100)).sum(-1)

    def loss_of(model, ids, labels, mask):
        with torch.no_grad():
            ref = log_probs(reference, ids, mask, labels)
        delta = log_probs(model, ids, mask, labels) - ref
        return -F.logsigmoid(BETA * (delta[:PAIRS] - delta[PAIRS:])).mean()

    return train_loop(work, "pairs.jsonl", args.steps, PAIRS, 1e-5, samples_of, loss_of)


if __name__ == "__main__":
    compare(__file__, 14, prepare, run_retort, run_transformers)
