"""More work than the roles of a run can do at once: all of it must finish, in bounded memory.

Each case launches a recipe under load, a role of it slowed down by stop signals that are shorter
than any timeout, and prints the most memory that each process had, less what the same recipe needs
for one small step (libraries, code, the allocator), beside what `retort plan` says for the load.
"""
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

from launched import Run, kill
from scenarios import GENERATION, GOLDENS, write_data

# What malloc keeps and plan does not claim to know: fragments, arenas of threads.
MARGIN_MIB = 24.0


@dataclasses.dataclass
class Case:
    name: str
    recipe: str
    load: list  # settings
    idle: list  # settings of the run that it is compared with
    slowed: str = ""  # a role
    stopped: float = 0.0  # seconds that each of its processes is held, again and again
    running: float = 0.02  # seconds between


def roles(**each):
    return "roles:\n" + "".join(f"  {name}: {{{text}}}\n" for name, text in each.items())


def world(model, dp=1, more=""):
    return f"model: {model}, world: {{dp: {dp}, threads: 1}}{more}"


def train(steps):
    return (f"train:\n  max_steps: {steps}\n  learning_rate: 1.0e-4\n"
            "  lr_scheduler_type: constant\n")


def cases(data):
    rows = f"data:\n  train: [{{path: {GOLDENS / 'rows.jsonl'}}}]\n  max_length: 64\n"
    prompts = f"data:\n  train: [{{path: {data / 'prompts.jsonl'}}}]\n  max_length: 64\n"
    wide = "distill: {teachers: [{role: teacher}], payload: full}\n"

    def distill(dp, steps, block=wide):
        both = roles(student=world(GOLDENS / "qwen3", dp), teacher=world(GOLDENS / "teacher"))
        return (f"recipe: distill\nseed: 3\n{both}{rows}"
                f"  packing: false\n  shuffle: false\n{train(steps)}"
                f"  per_device_train_batch_size: 1\n{block}")

    one_step = ["train.max_steps=1", "train.gradient_accumulation_steps=1", "distill.prefetch=1"]
    large = data / "heavy"
    grpo = (
        "recipe: grpo\nseed: 3\n"
        + roles(student=world(large), generator=world(large))
        + prompts + train(4) + "  per_device_train_batch_size: 4\n"
        + GENERATION % ", num_generations: 4"
        + "grpo: {}\nrewards: [{type: length, min: 10, max: 64}]\n")
    small = [f"roles.{name}.model={GOLDENS / 'qwen3'}" for name in ("student", "generator")]
    return [
        # 1,152 requests at once at one teacher.
        Case("8 ranks x 48 micro-batches x 3 steps at one slow teacher", distill(8, 3),
             ["train.gradient_accumulation_steps=48", "distill.prefetch=2"], one_step,
             slowed="teacher", stopped=0.1, running=0.1),
        # Three steps of requests wait for longer than rpc.timeout; no handler runs for so long.
        Case("a teacher slower than rpc.timeout / 3", distill(1, 30),
             ["train.gradient_accumulation_steps=4", "distill.prefetch=2", "rpc.timeout=2s"],
             one_step, slowed="teacher", stopped=1.2, running=0.005),
        # The teacher's answers are fetched late.
        Case("a slow reader of wide answers", distill(2, 6),
             ["train.per_device_train_batch_size=20", "train.gradient_accumulation_steps=24",
              "distill.prefetch=2"], one_step, slowed="student", stopped=0.3, running=0.1),
        Case("heavy weights, pushed each step", grpo, [], small + ["train.max_steps=1"],
             slowed="generator", stopped=0.1, running=0.1),
        Case("the same without restarts", grpo, ["roles.generator.restarts=0"],
             small + ["train.max_steps=1", "roles.generator.restarts=0"]),
    ]


class Load(threading.Thread):
    """Slows a role of a run down, and keeps the most memory that each process had (VmHWM)."""

    def __init__(self, run, case):
        super().__init__(daemon=True)
        self.run_, self.case, self.peaks = run, case, {}
        self.start()

    def run(self):
        while self.run_.running():
            slowed = []
            states = self.run_.states()
            working = ("ready", "serving", "training")
            serving = {n.split("/")[0] for n, (s, _) in states.items() if s in working}
            for name, (state, pid) in states.items():
                self.note(name, pid)
                busy = state in ("ready", "serving", "training", "saving") and "student" in serving
                if name.split("/")[0] == self.case.slowed and busy and pid > 0:
                    slowed.append(pid)
            if self.case.stopped and slowed:
                for pid in slowed:
                    kill(pid, signal.SIGSTOP)
                time.sleep(self.case.stopped)
                for pid in slowed:
                    kill(pid, signal.SIGCONT)
            time.sleep(self.case.running)

    def note(self, name, pid):
        try:
            text = open(f"/proc/{pid}/status").read()
        except OSError:
            return
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                self.peaks[name] = max(self.peaks.get(name, 0), int(line.split()[1]) / 1024)


def measure(program, folder, case, settings):
    run = Run(program, folder, case.recipe, settings=settings)
    load = Load(run, case)
    code = run.wait(stall=900)
    load.join()
    return code, load.peaks, run.seconds


def plan(program, folder, settings):
    """MiB of a rank of each role."""
    text = subprocess.run(
        [program, "plan", str(folder / "recipe.yaml"), "--json", *settings], check=True,
        capture_output=True, text=True).stdout
    said = json.loads(text)
    bytes_of = {role["role"]: role["peak_bytes_per_rank"] for role in said["roles"]}
    bytes_of["student"] += sum(link["max_prefetch_bytes_per_rank"] for link in said["links"])
    return {role: size / 2**20 for role, size in bytes_of.items()}


def run_case(program, folder, case):
    idle = dataclasses.replace(case, slowed="", running=0.02)
    code, base, _ = measure(program, folder / "idle", idle, case.idle)
    if code != 0:
        print(f"{case.name}: fails without load (exit code {code}), see {folder / 'idle'}")
        return False
    code, peaks, seconds = measure(program, folder / "load", case, case.load)
    print(f"{case.name}: exit code {code}, {seconds:.1f} s", flush=True)
    if code != 0:
        print(f"  see {folder / 'load'}")
        return False

    said = plan(program, folder / "load", case.load)
    before = plan(program, folder / "idle", case.idle)
    fits = True
    for role in sorted({name.split("/")[0] for name in peaks}):
        ranks = [name for name in peaks if name.split("/")[0] == role and name in base]
        used = max(peaks[name] - base[name] for name in ranks)
        bound = said[role] - before[role]
        over = used > bound + MARGIN_MIB
        fits = fits and not over
        print(f"  {role:10} peak {max(peaks[n] for n in ranks):8.1f} MiB, {used:8.1f} above idle; "
              f"plan {bound:8.1f} above idle{'  MORE THAN PLANNED' if over else ''}", flush=True)
    return fits


def main(program, report):
    folder = report.resolve() / "overload"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_data(folder, program)
    subprocess.run(
        [program, "model", "init", "--arch", "qwen3", "--tokenizer", str(GOLDENS / "qwen3"),
         "--hidden-size", "512", "--num-hidden-layers", "6", "--num-attention-heads", "8",
         "--seed", "5", "--output", str(folder / "heavy")],
        check=True, stdout=subprocess.DEVNULL)
    bad = [case.name for number, case in enumerate(cases(folder))
           if not run_case(program, folder / str(number), case)]
    return f"{len(bad)} cases went wrong: {'; '.join(bad)}" if bad else 0
