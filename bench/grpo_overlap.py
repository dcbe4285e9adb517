# The time of a GRPO step beside what it consists of: generation, training, and a reward program
# that takes 50 ms a sample.
#   ./dev bench overlap [options]
#   python bench/grpo_overlap.py --retort build/bin/retort [--model FOLDER --data train.jsonl]
# Without a model a random one and data are made. Three runs in turns, some rounds of them: without
# the program, which gives generation and training alone; with it at max_staleness 0; and at 1.
#
# Student and generator get one core each (sched_setaffinity, as taskset does, on all their
# threads); the program sleeps and needs none. --no-pin leaves that to the kernel.
#   --beside OTHER/build/bin/retort
# takes turns with another program, of an older commit, on the same model and data, and prints how
# many times as long its steps are.
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

CORES = {"student": 0, "generator": 1}
FIRST_STEPS = 3  # of a run, which fill pools and caches

REWARD = """import json, sys, time
log = open(sys.argv[2], "a")
for line in sys.stdin:
    start = time.monotonic()
    row = json.loads(line)
    time.sleep(float(sys.argv[1]))
    print(json.dumps({"id": row["id"], "score": row["id"] % 3}), flush=True)
    print(time.monotonic() - start, file=log, flush=True)
"""


def make_inputs(args, work):
    """A model of random weights and arithmetic problems, as the demo has them."""
    retort = lambda *words: subprocess.run(
        [args.retort, *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )
    args.data = work / "train.jsonl"
    args.model = work / "model"
    tokenizer = work / "tokenizer"
    retort("data", "arithmetic", "--output", args.data, "--first", 0, "--count", 2000, "--seed", 1)
    retort("tokenizer", "train", "--data", args.data, "--vocab-size", 400, "--output", tokenizer)
    retort("model", "init", "--arch", "qwen3", "--tokenizer", tokenizer, "--output", args.model,
           "--seed", 1, "--hidden-size", args.hidden_size, "--num-hidden-layers", 4,
           "--num-attention-heads", 4, "--num-key-value-heads", 4,
           "--intermediate-size", 3 * args.hidden_size)  # fmt: skip


def recipe_of(args, run, rewards, staleness):
    return f"""recipe: grpo
output_dir: {run}
seed: 1
roles:
  student: {{model: {args.model}, world: {{threads: 1}}}}
  generator: {{model: {args.model}, world: {{threads: 1}}}}
data: {{train: [{{path: {args.data}}}], max_length: 256}}
generation: {{num_generations: 8, max_new_tokens: {args.max_new_tokens}}}
rewards: [{rewards}]
grpo: {{max_staleness: {staleness}}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {args.batch}
  learning_rate: 1.0e-6
  lr_scheduler_type: constant
  save_steps: 0
"""


def pin(launcher):
    """The roles below the launcher, each to its core, with all threads they have by now; which."""
    pinned = set()
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        try:
            words = pathlib.Path(f"/proc/{child}/cmdline").read_text().split("\0")
            role = next((r for r in CORES if any(w.split("/")[0] == r for w in words)), None)
            for thread in os.listdir(f"/proc/{child}/task") if role else []:
                os.sched_setaffinity(int(thread), {CORES[role]})
                pinned.add(role)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
    return pinned


def launch(args, work, name, rewards, staleness, retort=None):
    """The rows of metrics of a run of args.retort, or of another program."""
    run = work / name
    recipe = work / "grpo.yaml"
    recipe.write_text(recipe_of(args, run, rewards, staleness))
    command = [retort or args.retort, "launch", str(recipe), "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    pinned = set()
    while process.poll() is None:
        if args.pin:
            pinned |= pin(process.pid)
        time.sleep(0.2)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    if args.pin and pinned != set(CORES):
        sys.exit(f"only {sorted(pinned)} of {sorted(CORES)} run below the launcher; --no-pin")
    return [json.loads(line) for line in open(run / "metrics.jsonl")][FIRST_STEPS:]


def median(rows, value):
    return statistics.median([value(row) for row in rows])


def measure_round(args, work, number):
    """Seconds: generation, training, reward, and the steps at max_staleness 0 and 1."""
    alone = launch(args, work, "alone", "{type: length, min: 1, max: 100000}", 0)
    log = work / "reward.log"
    log.unlink(missing_ok=True)
    argv = json.dumps([sys.executable, str(work / "reward.py"), str(args.reward_seconds), str(log)])
    program = f"{{type: command, argv: {argv}, timeout: 10m}}"
    serial = launch(args, work, "serial", program, 0)
    overlapped = launch(args, work, "overlapped", program, 1)
    samples = [float(line) for line in log.read_text().split()]
    return {
        **measure_beside(args, work, number),
        "generation": median(alone, lambda row: row["generation_time"]),
        "training": median(alone, lambda row: row["step_time"] - row["generator_wait_time"]),
        "reward": statistics.mean(samples) * args.batch,
        "step 0": median(serial, lambda row: row["step_time"]),
        "step 1": median(overlapped, lambda row: row["step_time"]),
    }


def measure_beside(args, work, number):
    """Seconds of a step of both programs without a reward that takes time: serial, overlapped."""
    if not args.beside:
        return {}
    # Who goes first changes, so that the order is nobody's advantage.
    programs = {"ours": args.retort, "other's": args.beside}
    order = list(programs)[:: 1 if number % 2 == 0 else -1]
    rewards, seconds = "{type: length, min: 1, max: 100000}", {}
    for staleness in (0, 1):
        for whose in order:
            rows = launch(args, work, "beside", rewards, staleness, programs[whose])
            step = median(rows, lambda row: row["step_time"])
            seconds[f"{whose} {staleness}"] = step
    return seconds


def report_beside(rounds):
    print("\n| | ms | the other's | ratio, median (lowest, highest) |\n|---|---|---|---|")
    for staleness in (0, 1):
        ours = [r[f"ours {staleness}"] for r in rounds]
        others = [r[f"other's {staleness}"] for r in rounds]
        ratios = sorted(b / a for a, b in zip(ours, others))
        print(f"| step at max_staleness {staleness} | {statistics.median(ours) * 1e3:.0f} "
              f"| {statistics.median(others) * 1e3:.0f} | {statistics.median(ratios):.3f} "
              f"({ratios[0]:.3f}, {ratios[-1]:.3f}) |")  # fmt: skip


def report(rounds):
    of = lambda name: statistics.median([r[name] for r in rounds])
    ratio = lambda name, ideal: statistics.median([r[name] / ideal(r) for r in rounds])
    print("| | ms |\n|---|---|")
    for name in ("generation", "training", "reward"):
        print(f"| {name} alone | {of(name) * 1e3:.0f} |")
    print(f"| step at max_staleness 0 | {of('step 0') * 1e3:.0f} |")
    print(f"| step at max_staleness 1 | {of('step 1') * 1e3:.0f} |")

    serial = ratio("step 0", lambda r: max(r["generation"], r["reward"]) + r["training"])
    overlapped = ratio("step 1", lambda r: max(r["generation"], r["training"], r["reward"]))
    print(f"\nmax_staleness 0: step / (max(generation, reward) + training) = {serial:.2f}")
    print(f"max_staleness 1: step / max(generation, training, reward) = {overlapped:.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--beside", help="another program, which takes turns with it")
    parser.add_argument("--model", help="default: one of random weights")
    parser.add_argument("--data", help="default: arithmetic problems")
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16, help="completions of a step")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--reward-seconds", type=float, default=0.05, help="of each completion")
    parser.add_argument("--no-pin", dest="pin", action="store_false")
    args = parser.parse_args()
    if args.pin and os.cpu_count() < len(CORES):
        sys.exit(f"a core each needs {len(CORES)} cores; there are {os.cpu_count()}: use --no-pin")
    if bool(args.model) != bool(args.data):
        sys.exit("give --model and --data together, or neither")

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "reward.py").write_text(REWARD)
        if not args.model:
            make_inputs(args, work)
        rounds = [measure_round(args, work, number) for number in range(args.rounds)]
    print(f"{args.batch} completions of up to {args.max_new_tokens} tokens a step, reward of "
          f"{args.reward_seconds * 1e3:.0f} ms a completion, medians of {args.rounds} rounds; "
          + ("student and generator on a core each" if args.pin else "not pinned"))  # fmt: skip
    report(rounds)
    if args.beside:
        report_beside(rounds)


if __name__ == "__main__":
    main()
