"""Whole runs of `retort launch`, ended after some steps."""

import json
import shutil
import statistics
import subprocess
import time

from package import PACKAGE
from processes import Child, Command, lines_of
from results import record
from run_recipes import recipes, steps, write_recipe

WARM_UP = 3


def read_rows(path):
    rows = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                pass  # half a line
    return [r for r in rows if "step_time" in r]


def one_run(name):
    work, recipe = Child.work, recipes(Child.work)[name]
    path, folder = write_recipe(work, name, recipe), work / "runs" / name
    start = time.monotonic()
    argv = [PACKAGE / "bin/retort", "launch", path, "--overwrite"]
    print("$", *argv, flush=True)
    command = Command(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    first, rows = None, []
    for line in lines_of(command, start + Child.left() - 4):
        if line is not None:
            print(line, flush=True)
        rows = read_rows(folder / "metrics.jsonl")
        if rows and first is None:
            first = time.monotonic() - start
        if len(rows) >= steps():
            break
    rc = command.process.poll()
    command.kill()
    rows = read_rows(folder / "metrics.jsonl")
    for log in sorted(folder.glob("logs/*.log")):
        print(f"== {log.name}\n{log.read_text(errors='replace')[-40000:]}", flush=True)
    for row in rows:
        print(json.dumps(row), flush=True)
    report_run(rows, rc, first)
    shutil.rmtree(folder, ignore_errors=True)
    return len(rows) >= steps() // 2


def report_run(rows, rc, first):
    done = f"{len(rows)} steps" + (f", exit code {rc}" if rc not in (None, 0) else "")
    if not rows:
        record("run", done)
        return
    behind = rows[WARM_UP:] or rows
    numbers = {k: [r[k] for r in behind if isinstance(r.get(k), (int, float))] for k in rows[-1]}
    medians = {k: statistics.median(v) for k, v in numbers.items() if v}
    peaks = [r.get("peak_device_memory", 0) for r in rows]
    parts = [
        done,
        f"{medians['step_time']:.3f} s",
        f"{medians.get('tokens_per_second', 0):.0f} tok/s",
        f"peak {max(peaks) / 2**30:.1f} GiB",
    ]
    for key, label in (
        ("generation_time", "generation"),
        ("weight_sync_time", "push"),
        ("reward", "reward"),
        ("frac_without_signal", "no signal"),
        ("data_wait_time", "data"),
    ):
        if key in medians:
            parts.append(f"{label} {medians[key]:.3f}")
    # Of rejection_sampling only the first step of a round draws.
    drawn = [r["generation_time"] for r in rows if r.get("generation_time")]
    if drawn and "generation_time" not in medians:
        parts.append(f"generation {max(drawn):.2f}")
    parts.append(f"loss {rows[0].get('loss')} -> {rows[-1].get('loss')}")
    record(
        "run",
        ", ".join(parts),
        medians=medians,
        peak=max(peaks),
        longest_generation=max(drawn, default=None),
        first_row_after=first,
        first_rows=rows[:WARM_UP],
        last_row=rows[-1],
    )
