# What the comparisons of `retort launch` with plain transformers loops share: models and rows, runs
# in turns with as many threads in all or on one GPU, the loop's update, and the table.
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

MAX_LENGTH = 512
WARM_UP = 3  # steps of a run
QUIET = dict(check=True, stdout=subprocess.DEVNULL)
TRAIN = """train:
  max_steps: {steps}
  per_device_train_batch_size: {rows}
  learning_rate: {rate}
  lr_scheduler_type: constant
  save_steps: 0
"""


# ---- rows and models -----------------------------------------------------------------------------
def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_rows(source, path, count):
    """The first rows of GSM8K's question/answer, or of prompt/completion, as the latter."""
    rows = [json.loads(line) for line in open(source)][:count]
    pairs = [
        (r.get("question", r.get("prompt")), r.get("answer", r.get("completion"))) for r in rows
    ]
    write_jsonl(path, ({"prompt": q + "\n", "completion": a} for q, a in pairs))


def train_tokenizer(retort, data, output, vocab_size=8192):
    """Of the texts come at most 8,192 tokens; what `vocab_size` is above that stands in no text."""
    command = [retort, "tokenizer", "train", "--data", str(data)]
    subprocess.run([*command, "--vocab-size", "8192", "--output", str(output)], **QUIET)
    path = output / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    known = tokenizer["model"]["vocab"]
    first = 1 + max([*known.values(), *(token["id"] for token in tokenizer["added_tokens"])])
    known.update({f"<never {i}>": i for i in range(first, vocab_size)})
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


# Of random models: for a CPU 10 M and 19 M parameters, for a GPU those of Qwen3 0.6B and 1.7B.
CPU = "--arch qwen2 --vocab-size 8192 --num-hidden-layers 6 --num-attention-heads 8"
CUDA = (
    "--arch qwen3 --vocab-size 151936 --num-hidden-layers 28 --num-attention-heads 16"
    " --num-key-value-heads 8 --head-dim 128 --dtype bfloat16"
)
SHAPES = {
    ("cpu", "model"): CPU + " --hidden-size 320 --intermediate-size 896 --seed 1",
    ("cpu", "teacher"): CPU + " --hidden-size 448 --intermediate-size 1256 --seed 2",
    ("cuda", "model"): CUDA + " --hidden-size 1024 --intermediate-size 3072 --seed 1",
    ("cuda", "teacher"): CUDA + " --hidden-size 2048 --intermediate-size 6144 --seed 2",
}


def init_model(retort, tokenizer, output, shape=SHAPES["cpu", "model"]):
    command = [retort, "model", "init", "--tokenizer", str(tokenizer), "--output", str(output)]
    subprocess.run([*command, *shape.split()], **QUIET)


def vocab_size(args):
    return 151936 if args.device == "cuda" else 8192


def rows_of_step(args):
    return 16 if args.device == "cuda" else 8


def load_model(args, path):
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(args.device)


# ---- retort --------------------------------------------------------------------------------------
class PeakOfRoles(threading.Thread):
    """Largest sum of the resident sets of a run's processes, without the launcher."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_folder, self.peak, self.done = str(run), 0, False

    def run(self):
        while not self.done:
            processes = pathlib.Path("/proc").glob("[0-9]*")
            self.peak = max(self.peak, sum(map(self.resident_bytes, processes)))
            time.sleep(0.05)

    def resident_bytes(self, folder):
        """Of the process with this folder in /proc; 0 if it is not one of ours, or gone."""
        try:
            command = (folder / "cmdline").read_bytes()
            if self.run_folder in command.decode(errors="replace") and b"\0role\0" in command:
                return int((folder / "statm").read_text().split()[1]) * 4096
        except (OSError, IndexError):
            pass
        return 0


def role(args, model, threads):
    """A role's value in a recipe."""
    if args.device == "cuda":
        return f"{{model: {model}, dtype: bfloat16, world: {{device: cuda}}}}"
    return f"{{model: {model}, world: {{threads: {threads}}}}}"


def launch(args, work, recipe):
    """Runs a recipe whose output_dir is work/run: tokens a second and loss of each step, peak
    bytes (on a device those of tensors, None where other roles have some too)."""
    (work / "recipe.yaml").write_text(recipe)
    watch = PeakOfRoles(work / "run")
    watch.start()
    subprocess.run([args.retort, "launch", str(work / "recipe.yaml"), "--overwrite"], **QUIET)
    watch.done = True
    rows = [json.loads(line) for line in open(work / "run/metrics.jsonl")]
    peak = watch.peak
    if args.device == "cuda":
        alone = recipe.count("device: cuda") == 1
        peak = rows[-1]["peak_device_memory"] if alone else None
    return {
        "rates": [row["tokens_per_second"] for row in rows],
        "losses": [row["loss"] for row in rows],
        "peak": peak,
    }


# ---- transformers --------------------------------------------------------------------------------
def tokenize(tokenizer, prompt, completion):
    """(ids, labels) of a row."""
    prompt_ids = tokenizer(prompt)["input_ids"]
    ids = tokenizer(completion, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    labels = [-100] * len(prompt_ids) + ids
    return (prompt_ids + ids)[:MAX_LENGTH], labels[:MAX_LENGTH]


def padded(samples):
    """ids, labels and attention mask of a batch."""
    import torch

    longest = max(len(ids) for ids, _ in samples)
    ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in samples])
    labels = torch.tensor([l + [-100] * (longest - len(l)) for _, l in samples])
    mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in samples])
    return ids, labels, mask


def train_loop(args, work, rows_file, batch, rate, samples_of, loss_of):
    """Steps of AdamW on work/model. `samples_of`: tokenizer, rows of a step -> (ids, labels) of
    each sequence; `loss_of`: model and the padded batch -> loss. A step's time includes both."""
    import resource

    import torch
    from transformers import AutoTokenizer

    model = load_model(args, work / "model").train()
    tokenizer = AutoTokenizer.from_pretrained(work / "model")
    fused = args.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=fused)
    rows = [json.loads(line) for line in open(work / rows_file)]
    rates, losses = [], []
    for step in range(args.steps):
        start = time.perf_counter()
        samples = samples_of(tokenizer, rows[step * batch : (step + 1) * batch])
        loss = loss_of(model, *(tensor.to(args.device) for tensor in padded(samples)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        rates.append(sum(len(ids) for ids, _ in samples) / (time.perf_counter() - start))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if args.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return {"rates": rates, "losses": losses, "peak": peak}


# ---- one beside the other ------------------------------------------------------------------------
def in_own_process(script, args, work):
    """The other program's run in a second process of this script, with threads and a peak of its
    own; what it prints last is its result."""
    threads = str(args.threads)
    env = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, HF_HUB_OFFLINE="1")
    command = [sys.executable, script, *sys.argv[1:], "--reference", str(work)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])


def arguments(steps, data=None):
    """A parser of what all comparisons take; `data`: the default, none if it has to be named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", default=data, required=data is None)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: bfloat16")
    parser.add_argument("--beside", help="another retort program, in the place of transformers")
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of the script
    return parser


def compare(script, steps, prepare, run_retort, run_transformers):
    """The main program of a comparison, in turns. `prepare`: args, work; the runs: args, work ->
    as launch()."""
    args = arguments(steps).parse_args()
    if args.reference:
        import torch

        torch.set_num_threads(args.threads)
        print(json.dumps(run_transformers(args, pathlib.Path(args.reference))))
        return

    other = "other retort" if args.beside else "transformers"
    runs = {"retort": [], other: []}

    def run_other(work):
        if not args.beside:
            return in_own_process(script, args, work)
        return run_retort(argparse.Namespace(**vars(args) | {"retort": args.beside}), work)

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        for _ in range(args.rounds):
            runs["retort"].append(run_retort(args, work))
            runs[other].append(run_other(work))

    # The ratio of each round, as the machine may be busier in one than in another.
    rate = lambda run: statistics.median(run["rates"][WARM_UP:])
    peaks = {name: [run["peak"] for run in of_name] for name, of_name in runs.items()}
    mib = {name: 0 if None in of_name else max(of_name) / 2**20 for name, of_name in peaks.items()}
    print(f"{'':14} {'tokens/s':>18} {'peak MiB':>10} {'first loss':>12} {'last loss':>12}")
    for name, of_name in runs.items():
        rates = ", ".join(f"{rate(run):.0f}" for run in of_name)
        peak, losses = mib[name] or float("nan"), of_name[0]["losses"]
        print(f"{name:14} {rates:>18} {peak:10.0f} {losses[0]:12.5f} {losses[-1]:12.5f}")
    pairs = list(zip(runs["retort"], runs[other]))
    ratios = ", ".join(f"{rate(ours) / rate(theirs):.2f}" for ours, theirs in pairs)
    memory = f"{mib['retort'] / mib[other]:.2f}" if mib["retort"] else "not comparable"
    print(f"ratio of tokens/s: {ratios}   ratio of peak memory: {memory}")
