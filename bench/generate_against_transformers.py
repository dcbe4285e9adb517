# Tokens per second of `retort generate` beside transformers' generate: same model folder, prompts, threads, fp32, greedy, one run.
#   python bench/generate_against_transformers.py --retort build/bin/retort [--threads 2] [--repeats 3] [--rows 10m,ragged,100m]
# Weights are random and end tokens are ignored, so every completion has exactly the length that was asked for. Each
# figure is the best of the repeats, which alternate between the two. The roofline is what reading the weights once for each
# step costs at the memory bandwidth measured beside it. Needs torch, transformers, numpy.
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

PROMPT, NEW, LONGEST = 64, 128, 256
SIZES = {
    "10m": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4),
    "100m": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12),
}
VOCAB = 8192


def make_model(retort, work, name):
    folder = work / name
    if folder.exists():
        return folder
    data, tokenizer = work / "text.jsonl", work / "tokenizer"
    if not tokenizer.exists():
        subprocess.run([retort, "data", "arithmetic", "--output", data, "--count", "200"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([retort, "tokenizer", "train", "--data", data, "--vocab-size", "512", "--output", tokenizer], check=True,
                       stdout=subprocess.DEVNULL)
    flags = [x for key, value in SIZES[name].items() for x in ("--" + key.replace("_", "-"), str(value))]
    subprocess.run([retort, "model", "init", "--arch", "llama", "--tokenizer", tokenizer, "--output", folder, "--vocab-size",
                    str(VOCAB), "--tie-word-embeddings", "false", "--initializer-range", "0.05", *flags], check=True,
                   stdout=subprocess.DEVNULL)
    return folder


def run_retort(retort, folder, work, prompts, lengths, threads):
    rows = work / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": p, "new": n}) + "\n" for p, n in zip(prompts, lengths)))
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    out = subprocess.run([retort, "generate", "--model", folder, "--prompts", rows, "--output", work / "out.jsonl", "--temperature",
                          "0", "--ignore-eos", "--max-new-tokens-column", "new", "--batch-size", str(len(prompts))], check=True,
                         env=env, stdout=subprocess.PIPE, text=True).stdout
    tokens = [json.loads(line)["token_ids"][0] for line in open(work / "out.jsonl")]
    return json.loads(out.splitlines()[-1])["seconds"], tokens


class Transformers:
    def __init__(self, folder, threads):
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.run([[5] * PROMPT], [4])

    def run(self, prompts, lengths):  # the whole batch runs to the longest
        ids = self.torch.tensor(prompts)
        start = time.perf_counter()
        with self.torch.no_grad():
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), do_sample=False, eos_token_id=None, pad_token_id=0,
                                      min_new_tokens=max(lengths), max_new_tokens=max(lengths))
        seconds = time.perf_counter() - start
        return seconds, [row[PROMPT:PROMPT + n].tolist() for row, n in zip(out, lengths)]


def same_tokens(a, b):  # share of tokens before the first difference
    same = sum(next((i for i, (x, y) in enumerate(zip(p, q)) if x != y), len(p)) for p, q in zip(a, b))
    return same / sum(len(p) for p in a)


def bandwidth(threads):
    import torch
    torch.set_num_threads(threads)
    x, best = torch.ones(1 << 27), float("inf")
    for _ in range(4):
        start = time.perf_counter()
        x.sum()
        best = min(best, time.perf_counter() - start)
    return x.numel() * 4 / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default="10m,ragged,100m")
    args = parser.parse_args()
    import numpy as np
    random = np.random.default_rng(0)
    geometric = [int(min(LONGEST, n)) for n in random.geometric(1 / 64, 32)]
    cases = [("10m", f"batch {b}", [NEW] * b) for b in (1, 8, 32)] if "10m" in args.rows.split(",") else []
    if "ragged" in args.rows:
        cases.append(("10m", "ragged 32", geometric))
    if "100m" in args.rows:
        cases += [("100m", f"batch {b}", [NEW] * b) for b in (1, 8, 32)]
    print(f"{args.threads} threads, best of {args.repeats}")
    print("| model | requests | retort tok/s | transformers tok/s | ratio | same greedy tokens | roofline tok/s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        work, models = pathlib.Path(folder), {}
        for name, label, lengths in cases:
            model = make_model(args.retort.resolve(), work, name)
            if name not in models:
                models = {name: Transformers(model, args.threads)}
            prompts = random.integers(4, 250, (len(lengths), PROMPT)).tolist()
            ours, theirs, tokens, rate = [], [], None, 0
            for _ in range(args.repeats):
                seconds, tokens = run_retort(args.retort.resolve(), model, work, prompts, lengths, args.threads)
                ours.append(seconds)
                seconds, expected = models[name].run(prompts, lengths)
                theirs.append(seconds)
                rate = max(rate, bandwidth(args.threads))
            count = sum(lengths)
            # Each step reads every weight but the embedding once; those of the small model stay in the cache.
            weights = 4 * (sum(p.numel() for p in models[name].model.parameters()) - VOCAB * SIZES[name]["hidden_size"])
            roofline = f"{len(lengths) * rate / weights:.0f} at {rate / 1e9:.0f} GB/s" if name == "100m" else ""
            print(f"| {name} | {label} | {count / min(ours):.0f} | {count / min(theirs):.0f} | {min(theirs) / min(ours):.2f} | "
                  f"{same_tokens(tokens, expected):.3f} | {roofline} |", flush=True)


if __name__ == "__main__":
    main()
