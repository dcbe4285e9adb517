# SFT tokens per second of `retort launch` beside a plain transformers training loop: same rows, model, batch, threads, fp32.
#   python bench/sft_against_transformers.py --retort build/bin/retort --data train.jsonl [--steps 40] [--threads 2]
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. Needs torch and transformers (`./dev goldens` makes such a venv).
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

ROWS = 8


def write_rows(source, path, count):
    rows = [json.loads(line) for line in open(source)][:count]
    pairs = [(r.get("question", r.get("prompt")), r.get("answer", r.get("completion"))) for r in rows]
    path.write_text("".join(json.dumps({"prompt": q + "\n", "completion": a}) + "\n" for q, a in pairs))


def run_retort(retort, work, steps, threads):
    recipe = work / "sft.yaml"
    recipe.write_text(f"""recipe: sft
output_dir: {work}/run
seed: 1
roles: {{student: {{model: {work}/model, world: {{threads: {threads}}}}}}}
data: {{train: [{{path: {work}/rows.jsonl}}], max_length: 512, packing: false, shuffle: false}}
train:
  max_steps: {steps}
  per_device_train_batch_size: {ROWS}
  learning_rate: 1.0e-4
  lr_scheduler_type: constant
  save_steps: 0
""")
    subprocess.run([retort, "launch", str(recipe), "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return [r["tokens_per_second"] for r in rows], [r["loss"] for r in rows], peak


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
        start = time.perf_counter()
        samples = []
        for row in rows[step * ROWS:(step + 1) * ROWS]:
            prompt = tokenizer(row["prompt"])["input_ids"]
            completion = tokenizer(row["completion"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
            samples.append(((prompt + completion)[:512], ([-100] * len(prompt) + completion)[:512]))
        longest = max(len(ids) for ids, _ in samples)
        ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in samples])
        labels = torch.tensor([l + [-100] * (longest - len(l)) for _, l in samples])
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in samples])
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
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
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of this script
    args = parser.parse_args()
    if args.reference:
        rates, losses, peak = run_transformers(pathlib.Path(args.reference), args.steps, args.threads)
        print(json.dumps({"rates": rates, "losses": losses, "peak": peak}))
        return
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        write_rows(args.data, work / "rows.jsonl", args.steps * ROWS)
        quiet = dict(check=True, stdout=subprocess.DEVNULL)
        subprocess.run([args.retort, "tokenizer", "train", "--data", args.data, "--vocab-size", "8192", "--output",
                        str(work / "tokenizer")], **quiet)
        subprocess.run([args.retort, "model", "init", "--arch", "qwen2", "--tokenizer", str(work / "tokenizer"), "--output",
                        str(work / "model"), "--hidden-size", "320", "--num-hidden-layers", "6", "--num-attention-heads", "8",
                        "--intermediate-size", "896"], **quiet)
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
