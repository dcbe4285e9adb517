#!/usr/bin/env python3
"""Picture of pipeline schedules: what each stage does at what time.

    python bench/plot_pipeline.py --program build/bench/pipeline_bench \\
        --output docs/pipeline.png 4,1,8 4,2,8

Each PP,VIRTUAL_PP,MICRO_BATCHES is a panel; the steps come from pipeline_bench, that is from
parallel::pipeline_schedule itself.
"""

import argparse
import subprocess

import picture

# Light to dark: chunk 0, 1, ...
COLORS = {
    "forward": ["#bcd7ee", "#6fa8d6", "#2f6fa8", "#1d4568"],
    "backward": ["#f7d3b8", "#eda36e", "#c8641e", "#8a4312"],
}


def read_steps(program, sizes):
    """[(stage, kind, chunk, micro-batch, start, end)] of one case."""
    command = [program, "--steps", *map(str, sizes)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    steps = [line.split() for line in out.splitlines()]
    return [
        (int(s), kind, int(c), int(m), float(start), float(end))
        for s, kind, c, m, start, end in steps
    ]


def draw(axes, sizes, steps):
    pp, virtual_pp, micro_batches = sizes
    time = max(step[-1] for step in steps)
    work = sum(end - start for stage, *_, start, end in steps if stage == 0)
    axes.barh(range(pp), [time] * pp, height=0.9, color="#efefef", linewidth=0)
    for stage, kind, chunk, micro_batch, start, end in steps:
        box = dict(color=COLORS[kind][chunk], edgecolor="white", linewidth=0.7)
        axes.barh(stage, end - start, left=start, height=0.9, **box)
        font = dict(fontsize=6.5 if virtual_pp < 3 else 5)
        font["color"] = "white" if chunk > 1 else "#222222"
        middle = (start + end) / 2
        axes.text(middle, stage, str(micro_batch), ha="center", va="center", **font)

    # The title says what the picture is for: the share of time that the schedule leaves idle.
    idle = 100 * (time - work) / work
    name = "1F1B" if virtual_pp == 1 else f"interleaved, {virtual_pp} chunks a stage"
    title = f"{name}: pp {pp}, {micro_batches} micro-batches, {time:g} units of time, "
    title += f"idle / work = {idle:.1f} %"
    axes.set_title(title, fontsize=8.5, loc="left", color="#333333")

    # Stage 0 is at the top.
    axes.set_yticks(range(pp), [f"stage {stage}" for stage in range(pp)])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="+", metavar="PP,VIRTUAL_PP,MICRO_BATCHES")
    parser.add_argument("--program", required=True, help="pipeline_bench")
    parser.add_argument("--output", required=True, help="PNG file to write")
    args = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    # A panel for each case, as high as it has stages.
    pyplot.rcParams.update({"font.size": 8, "axes.edgecolor": "#888888"})
    cases = [tuple(int(size) for size in case.split(",")) for case in args.cases]
    size = (8.6, 0.5 + sum(0.55 + 0.3 * pp for pp, *_ in cases))
    figure, panels = pyplot.subplots(len(cases), 1, figsize=size, sharex=True, squeeze=False)
    for axes, sizes in zip(panels[:, 0], cases):
        draw(axes, sizes, read_steps(args.program, sizes))
    unit = "the forward of one micro-batch through all layers of a stage"
    panels[-1, 0].set_xlabel(f"time; 1: {unit}")

    # One legend for all panels.
    chunks = max(virtual_pp for _, virtual_pp, _ in cases)
    legend = []
    for kind in COLORS:
        for chunk in range(chunks):
            label = kind + (f", chunk {chunk}" if chunks > 1 else "")
            legend.append(patches.Patch(color=COLORS[kind][chunk], label=label))
    legend.append(patches.Patch(color="#efefef", label="idle"))
    place = dict(ncols=len(legend), loc="lower center")
    figure.legend(handles=legend, **place, fontsize=7.5, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    picture.save(figure, args.output)


if __name__ == "__main__":
    main()
