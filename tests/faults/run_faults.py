#!/usr/bin/env python3
"""Loses serving processes of real runs at random moments, and compares with runs without a loss.

Each trial draws from its seed a recipe, a process that serves, SIGKILL or SIGSTOP, and a moment.
The run must end with exit code 0 within the restart limit, with the metrics and the model of a run
of that recipe without a fault, bit for bit, and leave no process behind.

    ./dev faults --trials 50 --seed 1000 --report faults.jsonl

One line a trial is appended to the report; the table at the end counts all its lines, so that
trials add up over days. Exit code 1 if a trial of this call went wrong: its folder is kept.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests/recipes/goldens"
DEADLINE = 180  # seconds for a run of about five
SETTINGS = ["rpc.heartbeat_interval=200ms", "rpc.peer_timeout=2s"]
# Numbers that depend on the clock.
TIMES = {
    "step_time",
    "tokens_per_second",
    "teacher_wait_time",
    "reference_wait_time",
    "generation_time",
    "generator_wait_time",
    "reward_time",
    "reward_wait_time",
    "weight_sync_time",
}


def role(name, model, dp=1, tp=1):
    return f"  {name}: {{model: {GOLDENS / model}, world: {{dp: {dp}, tp: {tp}, threads: 1}}}}\n"


def recipe(name, roles, data, steps, more):
    return (
        f"recipe: {name}\nseed: 3\nroles:\n{role('student', 'qwen3', tp=roles.pop('tp', 1))}"
        + "".join(role(one, **options) for one, options in roles.items())
        + f"data:\n  train: [{{path: {data}}}]\n  max_length: 64\n"
        + ("  packing: false\n  shuffle: false\n" if name == "distill" else "")
        + f"train:\n  max_steps: {steps}\n  per_device_train_batch_size: 4\n"
        "  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n  save_steps: 3\n" + more
    )


def distill(dp=1, tp=1, payload="topk"):
    more = f"distill: {{teachers: [{{role: teacher}}], payload: {payload}}}\n"
    return lambda data: recipe(
        "distill", {"teacher": {"model": "teacher", "dp": dp, "tp": tp}}, GOLDENS / "rows.jsonl",
        300, more)


def dpo(dp=1):
    return lambda data: recipe(
        "dpo", {"reference": {"model": "teacher", "dp": dp}}, data / "pairs.jsonl", 60,
        "dpo: {beta: 0.1}\n")


GENERATION = "generation: {max_new_tokens: 10, kv_cache: 4MiB%s}\n"


def on_policy_distill(dp=1):
    roles = {"generator": {"model": "qwen3", "dp": dp}, "teacher": {"model": "teacher", "dp": dp}}
    return lambda data: recipe(
        "on_policy_distill", dict(roles), data / "prompts.jsonl", 200,
        GENERATION % "" + "distill: {payload: topk}\n")


def grpo(dp=1, tp=1):
    more = GENERATION % ", num_generations: 4" + (
        "grpo: {}\nrewards: [{type: length, min: 10, max: 64}, "
        "{type: regex, pattern: 'w[1-3]', weight: 0.5}]\n")
    return lambda data: recipe(
        "grpo", {"generator": {"model": "qwen3", "dp": dp, "tp": tp}, "tp": tp},
        data / "prompts.jsonl", 200, more)


# Name: the recipe, and how many processes each role that can be lost has.
SCENARIOS = {
    "distill": (distill(), {"teacher": 1}),
    "distill, 2 replicas": (distill(dp=2), {"teacher": 2}),
    "distill, tp 2": (distill(tp=2, payload="hidden_states"), {"teacher": 2}),
    "dpo": (dpo(), {"reference": 1}),
    "dpo, 2 replicas": (dpo(dp=2), {"reference": 2}),
    "on_policy_distill": (on_policy_distill(), {"teacher": 1, "generator": 1}),
    "on_policy_distill, 2 replicas": (on_policy_distill(dp=2), {"teacher": 2, "generator": 2}),
    "grpo": (grpo(), {"generator": 1}),
    "grpo, 2 replicas": (grpo(dp=2), {"generator": 2}),
    "grpo, tp 2": (grpo(tp=2), {"generator": 2}),
}


def words(start, count):
    return " ".join(f"w{(start * 7 + i * 5) % 60}" for i in range(count))


def write_data(folder):
    with open(folder / "prompts.jsonl", "w") as file:
        for i in range(10):
            row = {"prompt": words(i + 1, 1 + i % 6), "completion": words(i + 2, 3)}
            file.write(json.dumps(row) + "\n")
    with open(folder / "pairs.jsonl", "w") as file:
        for i in range(240):
            row = {
                "prompt": words(i + 1, 1 + i % 4),
                "chosen": words(i + 3, 2 + i % 3),
                "rejected": words(i + 5, 1 + i % 5),
            }
            file.write(json.dumps(row) + "\n")


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Run:
    """A launch of a scenario in a folder of its own."""

    def __init__(self, program, folder, text):
        folder.mkdir(parents=True)
        self.folder, self.run = folder, folder / "run"
        (folder / "recipe.yaml").write_text(text + f"output_dir: {self.run}\n")
        self.output = open(folder / "output.txt", "w")
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [program, "launch", str(folder / "recipe.yaml"), *SETTINGS],
            stdout=self.output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    def wait(self):
        """The exit code; None if it hangs."""
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            code = None
            for pid in self.processes():
                kill(pid)
            self.process.wait()
        self.seconds = time.monotonic() - self.began
        self.output.close()
        return code

    def processes(self):
        """All whose command line names the folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and str(self.folder) in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def states(self):
        """What status.json says: "teacher/0" -> (state, pid)."""
        try:
            status = json.loads((self.run / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return {f"{p['role']}/{p['rank']}": (p["state"], p["pid"]) for p in status["processes"]}

    def result(self):
        """What must repeat: the metrics without times, and the model."""
        digest = hashlib.sha256()
        for line in open(self.run / "metrics.jsonl"):
            row = json.loads(line)
            kept = {k: v for k, v in row.items() if k not in TIMES and not k.startswith("rpc/")}
            digest.update(json.dumps(kept, sort_keys=True).encode())
        digest.update((self.run / "final/model.safetensors").read_bytes())
        return digest.hexdigest()


def lose(run, victim, number, moment):
    """Waits until `moment` and sends the signal. The phase, or None if there is nobody to lose."""
    time.sleep(max(0.0, run.began + moment - time.monotonic()))
    states = run.states()
    state, pid = states.get(victim, (None, 0))
    if run.process.poll() is not None or state in (None, "stopped", "failed") or pid <= 0:
        return None
    student = states["student/0"][0]
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    if state in ("starting", "loading"):
        return "loading"
    if student in ("starting", "loading"):
        return "handshake"
    return "save" if student == "saving" else "training"


def trial(program, folder, data, seed, references):
    draw = random.Random(seed)
    name = draw.choice(sorted(SCENARIOS))
    make, roles = SCENARIOS[name]
    if name not in references:
        whole = Run(program, folder / name.replace(", ", "-").replace(" ", "-"), make(data))
        if whole.wait() != 0:
            sys.exit(f"{name} fails without a fault, see {whole.folder}")
        references[name] = whole.result(), whole.seconds
    expected, seconds = references[name]

    # One or two losses; the second may hit what has just come back.
    losses = []
    for _ in range(draw.choice([1, 1, 2])):
        lost = draw.choice(sorted(roles))
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        victim = f"{lost}/{draw.randrange(roles[lost])}"
        losses.append((draw.uniform(0.05, seconds), victim, number))
    run = Run(program, folder / f"trial-{seed}", make(data))
    row = {"seed": seed, "scenario": name, "losses": []}
    for moment, victim, number in sorted(losses):
        phase = lose(run, victim, number, moment)
        row["losses"].append({
            "moment": round(moment, 3), "victim": victim, "signal": signal.Signals(number).name,
            "phase": phase})

    code = run.wait()
    row["seconds"] = round(run.seconds, 2)
    left = run.processes()
    row["outcome"] = (
        "hang" if code is None
        else f"exit code {code}" if code != 0
        else "other numbers" if run.result() != expected
        else "left processes" if left
        else "same")
    for pid in left:
        kill(pid)
    if row["outcome"] == "same":
        shutil.rmtree(run.folder)
    return row


def print_table(rows):
    phases, outcomes = collections.Counter(), collections.Counter(r["outcome"] for r in rows)
    for row in rows:
        for loss in row["losses"]:
            phases[(loss["phase"] or "too late", loss["signal"])] += 1
    print(f"{len(rows)} trials: " + ", ".join(f"{n} {what}" for what, n in outcomes.most_common()))
    for (phase, number), count in sorted(phases.items()):
        print(f"  {phase:10} {number:8} {count:5}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first trial")
    parser.add_argument("--report", type=pathlib.Path, help="file of one line a trial")
    parser.add_argument("--program", default=os.environ.get("RETORT_BIN"), help="build/bin/retort")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="retort-faults-"))
    report = options.report or folder / "faults.jsonl"
    write_data(folder)

    references, bad = {}, 0
    for seed in range(options.seed, options.seed + options.trials):
        row = trial(options.program, folder, folder, seed, references)
        with open(report, "a") as file:
            file.write(json.dumps(row) + "\n")
        bad += row["outcome"] != "same"
        what = "; ".join(f"{l['signal']} {l['victim']} ({l['phase']})" for l in row["losses"])
        print(f"trial {seed}: {row['scenario']}: {what}: {row['outcome']}, {row['seconds']} s",
              flush=True)

    print_table([json.loads(line) for line in open(report)])
    if bad:
        sys.exit(f"{bad} of {options.trials} trials went wrong; see {folder}")
    if report.parent == folder:
        print(f"report: {report}")
    else:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
