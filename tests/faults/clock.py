"""A wall clock that is set back by an hour: who starts then is taken for what it is, not for a
process that an earlier time has left over.

    clock      as "restarts": processes that serve are lost, and started again an hour earlier than
               all others; as "jump": the clock of all of them is set back, then some are lost; as
               "launcher": the launcher is killed, and the run goes on an hour earlier with
               --resume; as "join": two ranks that were started by `retort join` are started again
               with --resume, one or both an hour earlier.

The shim of tests/hosts/clock_shim.c shows the processes the clock; it says what is an hour earlier.
"""
import os
import random
import shutil
import signal
import struct
import subprocess
import time

import checkpoints
from launched import Run, kill, result_of, wait_for
from scenarios import DRAWN, ROOT, SCENARIOS

KINDS = ("clock",)
HOUR = 3600
END = 30.0  # seconds for processes whose launcher was killed


class Clock:
    """What processes with `variables` take for the time."""

    def __init__(self, bench, folder):
        self.shim, self.file = bench.folder / "clock_shim.so", folder / "clock"
        if not self.shim.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.shim,
                            ROOT / "tests/hosts/clock_shim.c", "-ldl"], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.set()
        self.variables = {"LD_PRELOAD": str(self.shim), "CLOCK_FILE": str(self.file)}
        self.behind = ["env", f"LD_PRELOAD={self.shim}", f"CLOCK_AHEAD={-HOUR}"]

    def set(self, everybody=0, later=0):
        """Seconds that are added for all, and for processes that start from now on."""
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("<qq", everybody, later))


def strike(run, victim, number):
    """The pid that was struck; 0: there was none."""
    state, pid = run.states().get(victim, (None, 0))
    return pid if pid > 0 and state not in ("stopped", "failed") and kill(pid, number) else 0


def by_launch(bench, draw, folder, name, way):
    """The run with the recipe `name`, in one folder; its exit code and words on it."""
    make, roles = SCENARIOS[name]
    clock = Clock(bench, folder)
    text = make(bench.folder / "data")
    (folder / "recipe.yaml").write_text(f"{text}output_dir: {folder / 'run'}\n")
    run = Run(bench.program, folder, None, variables=clock.variables)
    after = draw.randrange(4, 20)
    wait_for(lambda: run.steps() >= after or not run.running(), 120)
    words, met = f"{way} after {after} steps", run.running()

    if way == "launcher":
        run.process.kill()
        run.wait()
        if not wait_for(lambda: not run.processes(), END):
            return run, "left processes", words, met
        clock.set(later=-HOUR)
        run = Run(bench.program, folder, None, settings=["--resume"], variables=clock.variables)
        return run, run.wait(), words, met

    clock.set(everybody=-HOUR if way == "jump" else 0, later=-HOUR if way == "restarts" else 0)
    victims = [f"{role}/{rank}" for role, count in roles.items() for rank in range(count)]
    for _ in range(draw.choice([1, 1, 2])):
        victim = draw.choice(victims)
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        times = run.times_serving(victim)
        struck = strike(run, victim, number)
        words += f", {number.name} {victim}" if struck else f", {victim} not met"
        met = met and struck > 0
        wait_for(lambda: run.times_serving(victim) > times or not run.running(), 60)
        time.sleep(draw.uniform(0.0, 0.3))
    return run, run.wait(), words, met


def by_join(bench, seed, draw):
    """Two ranks of one replica that are started again; the trial, the outcome and words."""
    layout = draw.choice(["tp", "pp"])
    expected = checkpoints.reference(bench, layout)
    whole = checkpoints.Trial(bench, seed, layout)
    clock = Clock(bench, whole.folder)
    which = draw.choice([[1], [0], [0, 1]])
    words = f"join, {layout}, ranks {which}"
    codes = whole.join(draw, [], f"train.exit_interval={checkpoints.STOP}")
    if codes != [4, 4]:
        return whole, f"exit codes {codes} of the first start", words
    codes = whole.join(draw, clock.behind if 1 in which else [], "--resume",
                       first=clock.behind if 0 in which else [])
    if None in codes:
        return whole, "hang", words
    if codes != [0, 0]:
        return whole, f"exit codes {codes}", words
    return whole, "same" if result_of(whole.run) == expected else "other numbers", words


def trial(bench, seed, kind):
    """A row as run_faults.py has it."""
    draw, began = random.Random(f"{seed} {kind}"), time.monotonic()
    folder = bench.folder / f"trial-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    shared = set(os.listdir("/dev/shm"))
    way, name, met = draw.choice(["restarts", "jump", "launcher", "join"]), "sft", True
    if way == "join":
        _, outcome, words = by_join(bench, seed, draw)
        left = []
    else:
        name = draw.choice(DRAWN)
        reference = bench.reference(name)
        run, code, words, met = by_launch(bench, draw, folder, name, way)
        outcome = (
            code if isinstance(code, str) else "hang" if code is None
            else f"exit code {code}" if code != 0
            else "same" if run.result() == reference["result"] else "other numbers")
        left = run.processes()
    for pid in left:
        kill(pid)
    if outcome == "same" and (left or set(os.listdir("/dev/shm")) - shared):
        outcome = "left processes" if left else "left shared memory"
    if outcome == "same":
        shutil.rmtree(folder)
    return {"seed": seed, "build": bench.build, "kind": kind, "scenario": name, "weather": words,
            "losses": [], "cuts": [], "met": met, "seconds": round(time.monotonic() - began, 2),
            "descriptors": {"compared": False, "grown": {}}, "outcome": outcome,
            "left": {"processes": left}}
