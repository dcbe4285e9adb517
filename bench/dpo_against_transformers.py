# DPO tokens per second of `retort launch` beside a plain transformers training loop: same pairs, model, batch, threads in all, fp32.
#   python bench/dpo_against_transformers.py --retort build/bin/retort --data example_model_solutions.jsonl [--steps 30] [--threads 2]
# `--data`: JSONL with prompt/chosen/rejected rows, or GSM8K's example solutions. Retort runs the student and the reference in two processes
# of threads/2 threads each; the loop holds both models in one process. Needs torch and transformers.
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
            total = 0
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if self.part in (folder / "cmdline").read_bytes().decode(errors="replace") and b"\0role\0" in (folder / "cmdline").read_bytes():
                        total += int((folder / "statm").read_text().split()[1]) * 4096
                except (OSError, IndexError):
                    pass
            self.peak = max(self.peak, total)
            time.sleep(0.05)


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
    subprocess.run([retort, "launch", str(recipe), "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    watch.done = True
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    return [r["tokens_per_second"] for r in rows], [r["loss"] for r in rows], watch.peak


def run_transformers(work, steps, threads):
    import resource

    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32).train()
    reference = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32).eval()
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
        start = time.perf_counter()
        samples = []
        for key in ("chosen", "rejected"):
            for row in rows[step * PAIRS:(step + 1) * PAIRS]:
                prompt = tokenizer(row["prompt"])["input_ids"]
                completion = tokenizer(row[key], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
                samples.append(((prompt + completion)[:MAX_LENGTH], ([-100] * len(prompt) + completion)[:MAX_LENGTH]))
        longest = max(len(ids) for ids, _ in samples)
        ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in samples])
        labels = torch.tensor([l + [-100] * (longest - len(l)) for _, l in samples])
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in samples])
        with torch.no_grad():
            ref = log_probs(reference, ids, mask, labels)
        delta = log_probs(model, ids, mask, labels) - ref
        loss = -F.logsigmoid(BETA * (delta[:PAIRS] - delta[PAIRS:])).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        rates.append(sum(len(i) for i, _ in samples) / (time.perf_counter() - start))
    return rates, losses, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of this script
    args = parser.parse_args()
    if args.reference:
        rates, losses, peak = run_transformers(pathlib.Path(args.reference), args.steps, args.threads)
        print(json.dumps({"rates": rates, "losses": losses, "peak": peak}))
        return
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        pairs = [pair for _, pair in zip(range(args.steps * PAIRS), read_pairs(args.data))]
        (work / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        (work / "texts.jsonl").write_text("".join(json.dumps({"text": " ".join(pair.values())}) + "\n" for pair in pairs))
        quiet = dict(check=True, stdout=subprocess.DEVNULL)
        subprocess.run([args.retort, "tokenizer", "train", "--data", str(work / "texts.jsonl"), "--vocab-size", "8192", "--output",
                        str(work / "tokenizer")], **quiet)
        subprocess.run([args.retort, "model", "init", "--arch", "llama", "--tokenizer", str(work / "tokenizer"), "--output",
                        str(work / "model"), "--hidden-size", "320", "--num-hidden-layers", "6", "--num-attention-heads", "8",
                        "--intermediate-size", "896", "--vocab-size", "8192"], **quiet)
        print(f"{'':14} {'tokens/s':>10} {'peak MiB':>10} {'first loss':>12} {'last loss':>12}")
        env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1")
        results = {"retort": run_retort(args.retort, work, args.steps, args.threads)}
        out = subprocess.run([sys.executable, __file__, "--data", args.data, "--steps", str(args.steps), "--threads", str(args.threads),
                              "--reference", str(work)], check=True, capture_output=True, text=True, env=env).stdout
        reference = json.loads(out.splitlines()[-1])
        results["transformers"] = (reference["rates"], reference["losses"], reference["peak"])
        for name, (rates, losses, peak) in results.items():
            print(f"{name:14} {statistics.median(rates[3:]):10.0f} {peak / 2**20:10.0f} {losses[0]:12.5f} {losses[-1]:12.5f}")
        ratio = statistics.median(results["retort"][0][3:]) / statistics.median(results["transformers"][0][3:])
        print(f"ratio of tokens/s: {ratio:.2f}   ratio of peak memory: {results['retort'][2] / results['transformers'][2]:.2f}")


if __name__ == "__main__":
    main()
