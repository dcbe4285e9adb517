#!/usr/bin/env python3
"""Curves of one or several runs as one small PNG.

    python bench/plot_runs.py --output docs/recipes/grpo.png --title 'GRPO' \\
        --panel reward,eval_reward --panel kl 'seed 1=runs/a' 'seed 2=runs/b'

A run is LABEL=FOLDER (or FOLDER, or a metrics.jsonl); several folders behind one label,
FOLDER,FOLDER,..., are seeds of the same thing: their mean is a line and their range a band. --panel
is a comma-separated list of keys of metrics.jsonl that share one pair of axes; a key may be
followed by :TEXT, its name in the legend. Noisy keys are drawn as they are, faintly, with a running
mean over them (--smooth steps; keys of evaluations, eval_*, never). --log KEY draws a key's panel
on a logarithmic axis.
"""

import argparse
import json
import math
import pathlib
import sys

import picture

LOOK = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#888888",
    "axes.axisbelow": True,
}
LINE_STYLES = ["-", "--", ":", "-."]
COLORS = ["#2563a8", "#c8501e", "#2f8f5b", "#8a4fa3", "#8c6d1f", "#555555"]


def read_series(run):
    """{key: {step: value}} of a run's metrics.jsonl; a step stands once (the last line counts)."""
    path = pathlib.Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.is_file():
        sys.exit(f"{path} is not there: expected a run's folder or a metrics.jsonl")
    series = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            sys.exit(f"{path}:{number}: {error}")
        for key, value in row.items():
            if (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and math.isfinite(value)
            ):
                series.setdefault(key, {})[row["step"]] = float(value)
    return series


def running_mean(values, window):
    """Mean of each value and up to window - 1 values before it."""
    means = []
    for i in range(len(values)):
        first = max(0, i - window + 1)
        means.append(sum(values[first : i + 1]) / (i + 1 - first))
    return means


def parse_run(text):
    label, _, folders = text.rpartition("=")
    return label or pathlib.Path(folders.split(",")[0]).name, folders.split(",")


def parse_panel(text):
    keys = [key.partition(":") for key in text.split(",")]
    return [(key.strip(), (name or key).strip()) for key, _, name in keys]


def curve(seeds, key, window):
    """Steps that every seed has, and each seed's values there, smoothed and raw."""
    present = [seed[key] for seed in seeds if key in seed]
    if not present:
        return [], [], []
    steps = sorted(set.intersection(*(set(values) for values in present)))
    raw = [[values[step] for step in steps] for values in present]
    spacing = (steps[-1] - steps[0]) / max(1, len(steps) - 1) if len(steps) > 1 else 1
    points = 1 if key.startswith("eval_") else max(1, round(window / max(spacing, 1)))
    return steps, raw, [running_mean(values, points) for values in raw]


def draw_curve(axes, steps, raw, smooth, color, style, label):
    """The mean of the seeds; around it their range, or behind it what one seed wrote."""
    mean = [sum(column) / len(column) for column in zip(*smooth)]
    marker = "o" if len(steps) <= 12 else None
    line = dict(color=color, linewidth=1.6, marker=marker, markersize=3.5)
    axes.plot(steps, mean, style, **line, label=label)
    if len(smooth) > 1:
        low, high = ([pick(column) for column in zip(*smooth)] for pick in (min, max))
        axes.fill_between(steps, low, high, color=color, alpha=0.16, linewidth=0)
    elif smooth[0] != raw[0]:
        axes.plot(steps, raw[0], color=color, linewidth=0.6, alpha=0.3)


def draw_panel(axes, keys, runs, args):
    # Of several runs each has a colour and each key a style; of one run each key has a colour.
    drawn = 0
    for k, (key, name) in enumerate(keys):
        for r, (label, seeds) in enumerate(runs):
            steps, raw, smooth = curve(seeds, key, args.smooth)
            if not steps:
                continue
            color = COLORS[(r if len(runs) > 1 else k) % len(COLORS)]
            style = LINE_STYLES[k % len(LINE_STYLES)] if len(runs) > 1 else "-"
            parts = [name] if len(keys) > 1 or len(runs) == 1 else []
            parts += [label] if len(runs) > 1 else []
            draw_curve(axes, steps, raw, smooth, color, style, ", ".join(parts))
            drawn += 1

    if drawn == 0:
        known = sorted({key for _, seeds in runs for seed in seeds for key in seed})
        wanted = " or ".join(key for key, _ in keys)
        sys.exit(f"no run has {wanted}; there are: {', '.join(known)}")

    if any(key in args.log for key, _ in keys):
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_title(", ".join(name for _, name in keys), fontsize=9, loc="left", color="#333333")
    if drawn > 1:
        axes.legend(fontsize=7.5, frameon=False)


def grid(num_panels, columns, title):
    """A figure, and its panels; what they leave of the last row stays empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(LOOK)
    columns = min(columns, num_panels)
    rows = -(-num_panels // columns)
    size = (3.5 * columns, 2.5 * rows + (0.3 if title else 0))
    figure, cells = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    cells = [axes for row in cells for axes in row]
    for axes in cells[num_panels:]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure, cells[:num_panels]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER[,FOLDER...]")
    parser.add_argument("--output", required=True, help="PNG file to write")
    parser.add_argument("--panel", action="append", required=True, metavar="KEY[:NAME][,KEY...]")
    parser.add_argument("--title", default="")
    parser.add_argument("--smooth", type=int, default=10, help="steps of the running mean; 1: none")
    parser.add_argument("--log", action="append", default=[], metavar="KEY")
    parser.add_argument("--columns", type=int, default=3, help="panels beside each other")
    args = parser.parse_args()

    runs = []
    for label, folders in map(parse_run, args.runs):
        runs.append((label, [read_series(folder) for folder in folders]))

    panels = [parse_panel(text) for text in args.panel]
    figure, cells = grid(len(panels), args.columns, args.title)
    for axes, keys in zip(cells, panels):
        draw_panel(axes, keys, runs, args)
    figure.tight_layout()
    picture.save(figure, args.output)


if __name__ == "__main__":
    main()
