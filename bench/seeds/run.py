"""One run of `retort launch` for three_seeds.py, and what is kept of it.

A run is a recipe of recipes/configs with overrides. Of its metrics the evaluations are kept, the
means over tenths of the run of some other keys, and a few figures of the whole run:

    seconds        median of step_time
    processor      user and system time of all processes, in seconds
    peak           MiB of the largest process
    weights, state MiB of final/ without state/, and of state/
    bytes          from teachers, a token of the rows
    exact          share of the test problems that greedy answers of the last checkpoint get right
    kl             forward KL from the teacher on the test rows, over the whole vocabulary
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import plot_runs

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "recipes/configs"
TENTHS = 10
LAST_LINES = 25
FROM_TEACHER = "rpc/teacher/teacher.forward/bytes_received"
# One step on all test rows, whose loss is that of the weights before it.
HELD_OUT_KL = """roles.teacher.model=teacher/final roles.student.world.threads=1
roles.teacher.world.threads=1 data.train.0.path=test.jsonl data.eval=[] data.packing=false
train.max_steps=1 train.eval_steps=null train.warmup_ratio=null train.save_steps=0
distill.payload=full
distill.kd_ratio=1.0"""


def run_or_end(command, work, key=None):
    """Runs it in the folder of the work; ends this program with what it said if it fails. `key`: of
    the JSON object on its last line."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        end_with(command, done.returncode, done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])[key] if key else None


def end_with(command, status, said):
    """Errors of a role stand in what the launcher says, with the name of the role's log."""
    last = "\n".join(said.splitlines()[-LAST_LINES:])
    sys.exit(f"{last}\n{' '.join(command)}\nended with {status}")


def launch(retort, work, recipe, folder, overrides):
    """The run's resources, as wait4 tells them: of the launcher and all that it waited for."""
    command = [str(retort), "launch", str(CONFIGS / recipe), "--overwrite"]
    command += [f"output_dir={folder}", *overrides]
    (work / folder).parent.mkdir(parents=True, exist_ok=True)
    log = (work / folder).with_suffix(".log")
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=work, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        end_with(command, process.returncode, log.read_text())
    return usage


def megabytes(paths):
    return round(sum(path.stat().st_size for path in paths if path.is_file()) / 2**20, 3)


def thinned(series):
    """[[step, mean of the tenth of the run that ends there], ...]."""
    steps = sorted(series)
    size = max(1, -(-len(steps) // TENTHS))
    parts = [steps[first : first + size] for first in range(0, len(steps), size)]
    return [[part[-1], mean_of(series[step] for step in part)] for part in parts]


def mean_of(values):
    return float(f"{statistics.fmean(values):.5g}")


def curves(series, keys):
    """{key: [[step, value], ...]} of the evaluations and of `keys`."""
    kept = {}
    for key, values in series.items():
        if key.startswith("eval_"):
            kept[key] = [[step, float(f"{values[step]:.5g}")] for step in sorted(values)]
        elif key in keys:
            kept[key] = thinned(values)
    return kept


def figures(series, run, usage):
    final = (run / "final").resolve()
    state = list((final / "state").rglob("*"))
    found = {
        "seconds": float(f"{statistics.median(series['step_time'].values()):.4g}"),
        "processor": round(usage.ru_utime + usage.ru_stime, 1),
        "peak": round(usage.ru_maxrss / 1024, 1),
        "weights": megabytes(final.glob("*")),
        "state": megabytes(state),
    }
    if FROM_TEACHER in series:
        tokens = max(series["num_tokens"].values())
        found["bytes"] = round(sum(series[FROM_TEACHER].values()) / tokens, 1)
    return found


def exact_match(retort, work, model):
    command = [retort, "eval", "--model", model, "--data", "test.jsonl", "--exact-match"]
    return run_or_end([*command, "--max-new-tokens", "48"], work, "exact_match")


def held_out_kl(retort, work, model):
    rows = sum(1 for _ in open(work / "test.jsonl"))
    words = [f"roles.student.model={model}", f"train.per_device_train_batch_size={rows}"]
    launch(retort, work, "distill.yaml", "held_out_kl", [*words, *HELD_OUT_KL.split()])
    return plot_runs.read_series(work / "held_out_kl")["kd_loss"][1]


# Figures of the last checkpoint that take a command of their own.
MEASURES = {"exact": exact_match, "kl": held_out_kl}


def run(retort, work, experiment, folder, overrides):
    """What is kept of a run: {"curves": ..., "figures": ...}."""
    usage = launch(retort, work, experiment.recipe, folder, overrides)
    series = plot_runs.read_series(work / folder)
    found = figures(series, work / folder, usage)
    for name in experiment.measures:
        found[name] = float(f"{MEASURES[name](retort, work, f'{folder}/final'):.5g}")
    return {"curves": curves(series, experiment.keys), "figures": found}
