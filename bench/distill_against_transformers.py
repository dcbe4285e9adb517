# Off-policy distillation steps of `retort launch` beside a plain transformers loop: same rows,
# models, batch, forward KL over the whole vocabulary, fp32, `--threads` threads in all.
#   python bench/distill_against_transformers.py --retort build/bin/retort --data train.jsonl \
#       [--steps 16] [--threads 2]
# Retort runs student and teacher in two processes of threads/2 threads each; the loop has both in
# one process, and padded batches. `--data`: JSONL with question/answer (GSM8K) or
# prompt/completion rows. Needs torch and transformers (`./dev goldens` makes such an environment).
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from sft_against_transformers import MAX_LENGTH, QUIET, ROWS, tokenize, write_rows

WARM_UP = 3  # steps of a run


def run_retort(retort, work, steps, threads):
    each = max(1, threads // 2)
    recipe = work / "distill.yaml"
    recipe.write_text(f"""recipe: distill
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
train:
  max_steps: {steps}
  per_device_train_batch_size: {ROWS}
  learning_rate: 1.0e-4
  lr_scheduler_type: constant
  save_steps: 0
""")
    subprocess.run([retort, "launch", str(recipe), "--overwrite"], **QUIET)
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    return [r["tokens_per_second"] for r in rows], [r["loss"] for r in rows]


def run_transformers(work, steps, threads):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    load = lambda name: AutoModelForCausalLM.from_pretrained(work / name, dtype=torch.float32)
    model, teacher = load("model").train(), load("teacher").eval()
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

        # KL(teacher || student) at the positions before targets.
        with torch.no_grad():
            theirs = teacher(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        ours = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        wanted = labels[:, 1:] != -100
        divergence = (theirs.exp() * (theirs - ours)).sum(-1)
        loss = (divergence * wanted).sum() / wanted.sum()

        # The update of the student.
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        rates.append(sum(len(i) for i, _ in samples) / (time.perf_counter() - start))
    return rates, losses


def prepare(args, work):
    """The rows, a tokenizer of their texts, a random student and a larger random teacher."""
    write_rows(args.data, work / "rows.jsonl", args.steps * ROWS)
    train = [args.retort, "tokenizer", "train", "--data", args.data]
    tokenizer = str(work / "tokenizer")
    subprocess.run([*train, "--vocab-size", "8192", "--output", tokenizer], **QUIET)
    for name, hidden, inner, seed in (("model", 320, 896, 1), ("teacher", 448, 1256, 2)):
        init = [args.retort, "model", "init", "--arch", "qwen2", "--tokenizer", tokenizer]
        size = f"--hidden-size {hidden} --intermediate-size {inner} --vocab-size 8192"
        size += f" --num-hidden-layers 6 --num-attention-heads 8 --seed {seed}"
        subprocess.run([*init, "--output", str(work / name), *size.split()], **QUIET)


def run_in_own_process(args, work):
    """run_transformers in a second process of this script, with its own threads."""
    threads = str(args.threads)
    env = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, HF_HUB_OFFLINE="1")
    command = [sys.executable, __file__, "--data", args.data, "--steps", str(args.steps)]
    command += ["--threads", threads, "--reference", str(work)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    result = json.loads(out.splitlines()[-1])
    return result["rates"], result["losses"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of this script
    args = parser.parse_args()
    if args.reference:
        work = pathlib.Path(args.reference)
        rates, losses = run_transformers(work, args.steps, args.threads)
        print(json.dumps({"rates": rates, "losses": losses}))
        return

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        ours = run_retort(args.retort, work, args.steps, args.threads)
        theirs = run_in_own_process(args, work)

    rate = lambda result: statistics.median(result[0][WARM_UP:])
    for name, result in (("retort", ours), ("transformers", theirs)):
        first, last = result[1][0], result[1][-1]
        print(f"{name:14} {rate(result):8.0f} tokens/s, loss {first:.5f} to {last:.5f}")
    print(f"ratio of tokens/s: {rate(ours) / rate(theirs):.2f}")


if __name__ == "__main__":
    main()
