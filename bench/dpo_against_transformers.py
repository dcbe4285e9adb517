# DPO tokens per second of `retort launch` beside a plain transformers training loop: same pairs,
# model, batch, threads in all, fp32.
#   python bench/dpo_against_transformers.py --retort build/bin/retort \
#       --data example_model_solutions.jsonl [--steps 30] [--threads 2]
# `--data`: JSONL with prompt/chosen/rejected rows, or GSM8K's example solutions. Retort runs the
# student and the reference in two processes of threads/2 threads each; the loop holds both models
# in one process. Needs torch and transformers.
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PAIRS, MAX_LENGTH, BETA = 8, 512, 0.1
MODEL_SIZE = (
    "--hidden-size 320 --num-hidden-layers 6 --num-attention-heads 8 --intermediate-size 896 "
    "--vocab-size 8192"
)
QUIET = dict(check=True, stdout=subprocess.DEVNULL)


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


class PeakOfChildren(threading.Thread):
    """Largest sum of the resident sets of all descendants that share a command line part."""

    def __init__(self, part):
        super().__init__(daemon=True)
        self.part, self.peak, self.done = part, 0, False

    def run(self):
        while not self.done:
            processes = pathlib.Path("/proc").glob("[0-9]*")
            self.peak = max(self.peak, sum(map(self.resident_bytes, processes)))
            time.sleep(0.05)

    def resident_bytes(self, folder):
        """Of the process with this folder in /proc; 0 if it is not one of ours, or gone."""
        try:
            command = (folder / "cmdline").read_bytes()
            if self.part in command.decode(errors="replace") and b"\0role\0" in command:
                return int((folder / "statm").read_text().split()[1]) * 4096
        except (OSError, IndexError):
            pass
        return 0


def run_retort(retort, work, steps, threads):
    recipe = work / "dpo.yaml"
    each = max(1, threads // 2)
    recipe.write_text(f"""recipe: dpo
output_dir: {work}/run
roles:
  student: {{model: {work}/model, world: {{threads: {each}}}}}
  reference: {{model: {work}/model, world: {{threads: {each}}}}}
data: {{train: [{{path: {work}/pairs.jsonl}}], max_length: {MAX_LENGTH}, shuffle: false}}
dpo: {{beta: {BETA}}}
train:
  max_steps: {steps}
  per_device_train_batch_size: {PAIRS}
  learning_rate: 1.0e-5
  lr_scheduler_type: constant
  save_steps: 0
""")
    watch = PeakOfChildren(str(work / "run"))
    watch.start()
    subprocess.run([retort, "launch", str(recipe), "--overwrite"], **QUIET)
    watch.done = True
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    return [r["tokens_per_second"] for r in rows], [r["loss"] for r in rows], watch.peak


def tokenize(tokenizer, rows):
    """(ids, labels) of the chosen completions, then of the rejected ones."""
    samples = []
    for key in ("chosen", "rejected"):
        for row in rows:
            prompt = tokenizer(row["prompt"])["input_ids"]
            completion = tokenizer(row[key], add_special_tokens=False)["input_ids"]
            completion += [tokenizer.eos_token_id]
            labels = [-100] * len(prompt) + completion
            samples.append(((prompt + completion)[:MAX_LENGTH], labels[:MAX_LENGTH]))
    return samples


def run_transformers(work, steps, threads):
    import resource

    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    load = lambda: AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32)
    model, reference = load().train(), load().eval()
    tokenizer = AutoTokenizer.from_pretrained(work / "model")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    rows = [json.loads(line) for line in open(work / "pairs.jsonl")]
    rates, losses = [], []

    def log_probs(m, ids, mask, labels):
        logps = m(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        target = labels[:, 1:]
        picked = logps.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return (picked * (target != -100)).sum(-1)

    for step in range(steps):
        # The time of a step includes tokenising and padding.
        start = time.perf_counter()
        samples = tokenize(tokenizer, rows[step * PAIRS : (step + 1) * PAIRS])
        longest = max(len(ids) for ids, _ in samples)
        ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in samples])
        labels = torch.tensor([l + [-100] * (longest - len(l)) for _, l in samples])
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in samples])

        # The loss of DPO: chosen above rejected in one batch.
        with torch.no_grad():
            ref = log_probs(reference, ids, mask, labels)
        delta = log_probs(model, ids, mask, labels) - ref
        loss = -F.logsigmoid(BETA * (delta[:PAIRS] - delta[PAIRS:])).mean()

        # The update of the student.
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        rates.append(sum(len(i) for i, _ in samples) / (time.perf_counter() - start))
    return rates, losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(args, work):
    """The pairs, a tokenizer of their texts and a random model, all in `work`."""
    pairs = [pair for _, pair in zip(range(args.steps * PAIRS), read_pairs(args.data))]
    write_jsonl(work / "pairs.jsonl", pairs)
    write_jsonl(work / "texts.jsonl", [{"text": " ".join(pair.values())} for pair in pairs])

    train = [args.retort, "tokenizer", "train", "--data", str(work / "texts.jsonl")]
    tokenizer = str(work / "tokenizer")
    subprocess.run([*train, "--vocab-size", "8192", "--output", tokenizer], **QUIET)
    init = [args.retort, "model", "init", "--arch", "llama", "--tokenizer", tokenizer]
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
    parser.add_argument("--steps", type=int, default=30)
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
