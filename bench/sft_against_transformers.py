# SFT tokens per second of `retort launch` beside a plain transformers training loop: same rows,
# model, batch, threads, fp32.
#   python bench/sft_against_transformers.py --retort build/bin/retort --data train.jsonl \
#       [--steps 40] [--threads 2]
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. Needs torch and
# transformers (`./dev goldens` makes such a venv).
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROWS, MAX_LENGTH = 8, 512
MODEL_SIZE = (
    "--hidden-size 320 --num-hidden-layers 6 --num-attention-heads 8 --intermediate-size 896"
)
QUIET = dict(check=True, stdout=subprocess.DEVNULL)


def write_rows(source, path, count):
    rows = [json.loads(line) for line in open(source)][:count]
    pairs = [
        (r.get("question", r.get("prompt")), r.get("answer", r.get("completion"))) for r in rows
    ]
    lines = [json.dumps({"prompt": q + "\n", "completion": a}) + "\n" for q, a in pairs]
    path.write_text("".join(lines))


def run_retort(retort, work, steps, threads):
    recipe = work / "sft.yaml"
    recipe.write_text(f"""recipe: sft
output_dir: {work}/run
seed: 1
roles: {{student: {{model: {work}/model, world: {{threads: {threads}}}}}}}
data:
  train: [{{path: {work}/rows.jsonl}}]
  max_length: {MAX_LENGTH}
  packing: false
  shuffle: false
train:
  max_steps: {steps}
  per_device_train_batch_size: {ROWS}
  learning_rate: 1.0e-4
  lr_scheduler_type: constant
  save_steps: 0
""")
    subprocess.run([retort, "launch", str(recipe), "--overwrite"], **QUIET)
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return [r["tokens_per_second"] for r in rows], [r["loss"] for r in rows], peak


def tokenize(tokenizer, rows):
    """(ids, labels) of each row."""
    samples = []
    for row in rows:
        prompt = tokenizer(row["prompt"])["input_ids"]
        completion = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
        completion += [tokenizer.eos_token_id]
        labels = [-100] * len(prompt) + completion
        samples.append(((prompt + completion)[:MAX_LENGTH], labels[:MAX_LENGTH]))
    return samples


def run_transformers(work, steps, threads):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32).train()
    tokenizer = AutoTokenizer.from_pretrained(work / "model")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    rows = [json.loads(line) for line in open(work / "rows.jsonl")]
    rates, losses = [], []

    for step in range(steps):
        # The time of a step includes tokenising and padding.
        start = time.perf_counter()
        samples = tokenize(tokenizer, rows[step * ROWS : (step + 1) * ROWS])
        longest = max(len(ids) for ids, _ in samples)
        ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in samples])
        labels = torch.tensor([l + [-100] * (longest - len(l)) for _, l in samples])
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in samples])

        # The update.
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        rates.append(sum(len(i) for i, _ in samples) / (time.perf_counter() - start))
    return rates, losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare(args, work):
    """The rows, a tokenizer of their texts and a random model, all in `work`."""
    write_rows(args.data, work / "rows.jsonl", args.steps * ROWS)
    train = [args.retort, "tokenizer", "train", "--data", args.data]
    tokenizer = str(work / "tokenizer")
    subprocess.run([*train, "--vocab-size", "8192", "--output", tokenizer], **QUIET)
    init = [args.retort, "model", "init", "--arch", "qwen2", "--tokenizer", tokenizer]
    subprocess.run([*init, "--output", str(work / "model"), *MODEL_SIZE.split()], **QUIET)


def run_in_own_process(args, work):
    """run_transformers in a second process of this script, whose peak memory is its own."""
    threads = str(args.threads)
    env = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, HF_HUB_OFFLINE="1")
    command = [sys.executable, __file__, "--data", args.data, "--steps", str(args.steps)]
    command += ["--threads", threads, "--reference", str(work)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    result = json.loads(out.splitlines()[-1])
    return result["rates"], result["losses"], result["peak"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of this script
    args = parser.parse_args()
    if args.reference:
        work = pathlib.Path(args.reference)
        rates, losses, peak = run_transformers(work, args.steps, args.threads)
        print(json.dumps({"rates": rates, "losses": losses, "peak": peak}))
        return

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        ours = run_retort(args.retort, work, args.steps, args.threads)
        theirs = run_in_own_process(args, work)

    # The first three steps are for warming up.
    rate = lambda result: statistics.median(result[0][3:])
    print(f"{'':14} {'tokens/s':>10} {'peak MiB':>10} {'first loss':>12} {'last loss':>12}")
    for name, result in (("retort", ours), ("transformers", theirs)):
        _, losses, peak = result
        figures = f"{rate(result):10.0f} {peak / 2**20:10.0f}"
        print(f"{name:14} {figures} {losses[0]:12.5f} {losses[-1]:12.5f}")
    ratio = rate(ours) / rate(theirs)
    print(f"ratio of tokens/s: {ratio:.2f}   ratio of peak memory: {ours[2] / theirs[2]:.2f}")


if __name__ == "__main__":
    main()
