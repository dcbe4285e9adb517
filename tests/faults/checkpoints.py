"""Checkpoints that are damaged, or not seen by every host, when a run goes on from them."""
import os
import random
import shutil
import subprocess
import time

from launched import free_ports, kill, result_of
from scenarios import GOLDENS, recipe

KINDS = ("damage", "mixed")
STEPS, STOP = 15, 12  # of the run, and where it is stopped first: a checkpoint every 3 steps
PATIENCE = 3.0  # half of launch.collective_timeout: for a folder that shows late
LIMIT = 300  # seconds for one start: a hang


class Trial:
    """One run in several starts, all in one folder."""

    def __init__(self, bench, seed, layout):
        self.program, self.folder = bench.program, bench.folder / f"trial-{seed}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.run, self.layout = self.folder / "run", layout
        self.recipe = self.folder / "recipe.yaml"
        self.recipe.write_text(sft(layout) + f"output_dir: {self.run}\n")
        self.output, self.starts = "", 0

    def finish(self, processes):
        """The exit codes; None of what hangs."""
        codes, end = [], time.monotonic() + LIMIT
        for process in processes:
            try:
                self.output, _ = process.communicate(timeout=max(0, end - time.monotonic()))
                codes.append(process.returncode)
            except subprocess.TimeoutExpired:
                kill(process.pid)
                codes.append(None)
        self.starts += 1
        (self.folder / f"output-{self.starts}.txt").write_text(self.output)
        return codes

    def launch(self, *settings):
        return self.finish([popen([self.program, "launch", str(self.recipe), *settings])])[0]

    def join(self, draw, before, *settings, first=()):
        """Two ranks; the second behind the command `before`, the first behind `first`."""
        secret = self.folder / "secret"
        secret.write_text("ab" * 32 + "\n")
        secret.chmod(0o600)
        port = free_ports(draw)[0]
        processes = []
        for rank in range(2):
            environment = dict(
                os.environ, RETORT_RANK=str(rank), RETORT_SECRET_FILE=str(secret),
                RETORT_RENDEZVOUS=f"127.0.0.1:{port}")
            command = [self.program, "join", str(self.recipe),
                       f"launch.collective_timeout={2 * PATIENCE:.0f}s", *settings]
            processes.append(popen([*(before if rank == 1 else first), *command], environment))
        return self.finish(processes)

    def steps(self):
        return len((self.run / "metrics.jsonl").read_text().splitlines())


def popen(command, environment=None):
    environment = dict(environment or os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    return subprocess.Popen(command, env=environment, text=True, errors="replace",
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def sft(layout):
    """Of two ranks, but for the layout "one"."""
    text = recipe("sft", {"tp": 2 if layout == "tp" else 1}, GOLDENS / "rows.jsonl", STEPS, "",
                  batch=2)
    return text.replace("tp: 1", "pp: 2", 1) if layout == "pp" else text


def reference(bench, layout):
    """The result of the run without a fault."""
    key = f"checkpoints {layout}"
    if key not in bench.references:
        whole = Trial(bench, f"reference-{layout}", layout)
        if whole.launch() != 0:
            raise SystemExit(f"sft with {layout} fails without a fault, see {whole.folder}")
        bench.references[key] = result_of(whole.run)
        shutil.rmtree(whole.folder)
    return bench.references[key]


def is_needed(path):
    """What else is in a checkpoint people may change: it is a warning."""
    return path.is_file() and (path.parent.name == "state" or ".safetensors" in path.name)


def damage(bench, seed, draw):
    """One byte of what a run goes on from: told by hand, survived by itself."""
    layout = draw.choice(["one", "tp", "pp"])
    expected, trial = reference(bench, layout), Trial(bench, seed, layout)
    if (code := trial.launch(f"train.exit_interval={STOP}")) != 4:
        return trial, "", f"exit code {code} of the first start"
    newest = trial.run / f"checkpoint-{STOP}"
    file = draw.choice(sorted(path for path in newest.rglob("*") if is_needed(path)))
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    data[place] ^= draw.randrange(1, 256)
    file.write_bytes(data)
    words = f"{file.relative_to(newest)} at {place} of {len(data)}, {layout}"

    code = trial.launch("--resume")
    if code != 1:
        return trial, words, "silent" if code == 0 else f"exit code {code} where it is refused"
    if str(file) not in trial.output or f"checkpoint-{STOP - 3}" not in trial.output:
        return trial, words, "told without the file, or the checkpoint before"
    code = trial.launch("--resume", "launch.max_restarts=1")
    if code != 0:
        return trial, words, "hang" if code is None else f"exit code {code} of the fallback"
    if "is damaged" not in (trial.run / "status.json").read_text():
        return trial, words, "not told in status.json"
    return trial, words, "same" if result_of(trial.run) == expected else "other numbers"


def mixed(bench, seed, draw):
    """Rank 1 sees the run's folder without its newest checkpoints, for a while or for good."""
    layout, missing = draw.choice(["tp", "pp"]), draw.choice([1, 2, 3])
    late = draw.uniform(0.2, PATIENCE / 3) if draw.random() < 0.5 else None
    words = f"{layout}, without {missing}" + (f" for {late:.1f} s" if late else "")
    expected, trial = reference(bench, layout), Trial(bench, seed, layout)
    if (code := trial.launch(f"train.exit_interval={STOP}")) != 4:
        return trial, words, f"exit code {code} of the first start"
    old = trial.folder / "old"
    shutil.copytree(trial.run, old, symlinks=True)
    for i in range(missing):
        shutil.rmtree(old / f"checkpoint-{STOP - 3 * i}")

    script = f"mount --bind '{old}' '{trial.run}' && "
    if late:
        script += f"{{ (sleep {late}; umount -l '{trial.run}') & }} && "
    before = ["unshare", "--mount", "/bin/sh", "-c", script + 'exec "$@"', "sh"]
    codes = trial.join(draw, before, "--resume")
    if None in codes:
        return trial, words, "hang"
    if not late:
        if 0 in codes or trial.steps() != STOP:
            return trial, words, "silent"
        if "goes on from checkpoint" not in trial.output:
            return trial, words, "not told by name"
        codes = trial.join(draw, [], "--resume")
    if codes != [0, 0]:
        return trial, words, f"exit codes {codes}"
    return trial, words, "same" if result_of(trial.run) == expected else "other numbers"


def trial_row(bench, seed, kind):
    """A trial of one of KINDS, as a line of trials.jsonl."""
    began = time.monotonic()
    trial, words, outcome = globals()[kind](bench, seed, random.Random(seed))
    if outcome == "same":
        shutil.rmtree(trial.folder)
    return {"seed": seed, "build": bench.build, "kind": kind, "scenario": "sft", "weather": words,
            "losses": [], "cuts": [], "seconds": round(time.monotonic() - began, 2),
            "descriptors": {"compared": False, "grown": {}}, "outcome": outcome}
