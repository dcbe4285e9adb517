# Tokens per second of `retort generate` beside transformers' generate: same model folder, prompts,
# threads, fp32, greedy, one run.
#   python bench/generate_against_transformers.py --retort build/bin/retort \
#       [--threads 2] [--repeats 3] [--rows 10m,ragged,100m]
# Weights are random and end tokens are ignored, so every completion has exactly the length that was
# asked for. Each figure is the best of the repeats, which alternate between the two. The roofline
# is what reading the weights once for each step costs at the memory bandwidth measured beside it.
# Needs torch, transformers, numpy.
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

PROMPT, NEW, LONGEST = 64, 128, 256
SIZES = {
    "10m": dict(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
    ),
    "100m": dict(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
    ),
}
VOCAB = 8192
QUIET = dict(check=True, stdout=subprocess.DEVNULL)
COLUMNS = [
    "model",
    "requests",
    "retort tok/s",
    "transformers tok/s",
    "ratio",
    "same greedy tokens",
    "roofline tok/s",
]


def make_model(retort, work, name):
    folder = work / name
    if folder.exists():
        return folder

    # All models share a tokenizer, which only has to be there.
    data, tokenizer = work / "text.jsonl", work / "tokenizer"
    if not tokenizer.exists():
        subprocess.run([retort, "data", "arithmetic", "--output", data, "--count", "200"], **QUIET)
        train = [retort, "tokenizer", "train", "--data", data, "--vocab-size", "512"]
        subprocess.run([*train, "--output", tokenizer], **QUIET)

    size = [x for key, n in SIZES[name].items() for x in ("--" + key.replace("_", "-"), str(n))]
    size += ["--vocab-size", str(VOCAB), "--tie-word-embeddings", "false"]
    init = [retort, "model", "init", "--arch", "llama", "--tokenizer", tokenizer]
    init += ["--output", folder, "--initializer-range", "0.05"]
    subprocess.run([*init, *size], **QUIET)
    return folder


def run_retort(retort, folder, work, prompts, lengths, threads):
    rows, output = work / "prompts.jsonl", work / "out.jsonl"
    requests = [{"input_ids": p, "new": n} for p, n in zip(prompts, lengths)]
    rows.write_text("".join(json.dumps(request) + "\n" for request in requests))
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [retort, "generate", "--model", folder, "--prompts", rows, "--output", output]
    command += ["--temperature", "0", "--ignore-eos", "--max-new-tokens-column", "new"]
    command += ["--batch-size", str(len(prompts))]
    out = subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True).stdout
    tokens = [json.loads(line)["token_ids"][0] for line in open(output)]
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
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                min_new_tokens=max(lengths),
                max_new_tokens=max(lengths),
            )
        seconds = time.perf_counter() - start
        return seconds, [row[PROMPT : PROMPT + n].tolist() for row, n in zip(out, lengths)]

    def weight_bytes(self, name):
        """Of the weights that each step reads: all but the embedding."""
        parameters = sum(p.numel() for p in self.model.parameters())
        return 4 * (parameters - VOCAB * SIZES[name]["hidden_size"])


def same_tokens(a, b):
    """Share of tokens before the first difference."""
    total = 0
    for p, q in zip(a, b):
        total += next((i for i, (x, y) in enumerate(zip(p, q)) if x != y), len(p))
    return total / sum(len(p) for p in a)


def bandwidth(threads):
    import torch

    torch.set_num_threads(threads)
    x, best = torch.ones(1 << 27), float("inf")
    for _ in range(4):
        start = time.perf_counter()
        x.sum()
        best = min(best, time.perf_counter() - start)
    return x.numel() * 4 / best


def make_cases(rows, random):
    """[(model, label, tokens of each completion)]"""
    geometric = [int(min(LONGEST, n)) for n in random.geometric(1 / 64, 32)]
    batches = lambda name: [(name, f"batch {b}", [NEW] * b) for b in (1, 8, 16, 32)]
    cases = batches("10m") if "10m" in rows.split(",") else []
    if "ragged" in rows:
        cases.append(("10m", "ragged 32", geometric))
    if "100m" in rows:
        cases += batches("100m")
    return cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default="10m,ragged,100m")
    args = parser.parse_args()
    import numpy as np

    random = np.random.default_rng(0)
    cases = make_cases(args.rows, random)
    retort = args.retort.resolve()
    print(f"{args.threads} threads, best of {args.repeats}")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))

    with tempfile.TemporaryDirectory() as folder:
        work, models = pathlib.Path(folder), {}
        for name, label, lengths in cases:
            # One model of transformers is in memory at a time.
            model = make_model(retort, work, name)
            if name not in models:
                models = {name: Transformers(model, args.threads)}

            prompts = random.integers(4, 250, (len(lengths), PROMPT)).tolist()
            ours, theirs, tokens, rate = [], [], None, 0
            for _ in range(args.repeats):
                seconds, tokens = run_retort(retort, model, work, prompts, lengths, args.threads)
                ours.append(seconds)
                seconds, expected = models[name].run(prompts, lengths)
                theirs.append(seconds)
                rate = max(rate, bandwidth(args.threads))

            # The weights of the small model stay in the cache: its roofline says nothing.
            roofline_rate = len(lengths) * rate / models[name].weight_bytes(name)
            roofline = f"{roofline_rate:.0f} at {rate / 1e9:.0f} GB/s"
            cells = [name, label]
            cells += [f"{sum(lengths) / min(seconds):.0f}" for seconds in (ours, theirs)]
            cells += [f"{min(theirs) / min(ours):.2f}", f"{same_tokens(tokens, expected):.3f}"]
            cells += [roofline if name == "100m" else ""]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
