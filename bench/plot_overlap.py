#!/usr/bin/env python3
"""Picture of what reducing gradients adds to the backward pass, by bucket size. Use:

    build/bench/parallel_bench overlap | tee overlap.txt
    python bench/plot_overlap.py overlap.txt docs/overlap.png

Lines of other tables are passed over.
"""

import argparse
import pathlib

import picture

# Column of the table, its name, its colour.
CURVES = [
    (1, "time, median of rounds", "#2f6fa8"),
    (2, "time, fastest of rounds", "#c8641e"),
    (3, "processor time, median", "#888888"),
]


def read_rows(path):
    """{"overlapped": [(MiB, added, fastest, processor)], "at end": [...]}, in percent."""
    rows = {}
    for line in pathlib.Path(path).read_text().splitlines():
        words = line.replace("at end", "at_end").split()
        if len(words) == 7 and words[1] in ("overlapped", "at_end"):
            percentages = [float(word.rstrip("%")) for word in words[4:]]
            rows.setdefault(words[1], []).append((float(words[0]), *percentages))
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="what parallel_bench overlap printed")
    parser.add_argument("output", help="PNG file to write")
    args = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Each curve over the bucket sizes; gradients reduced at the end are single crosses.
    pyplot.rcParams.update({"font.size": 8, "axes.edgecolor": "#888888"})
    rows = read_rows(args.table)
    sizes = [row[0] for row in rows["overlapped"]]
    figure, axes = pyplot.subplots(figsize=(6.4, 2.9))
    for column, label, color in CURVES:
        values = [row[column] for row in rows["overlapped"]]
        axes.plot(sizes, values, marker="o", markersize=4, color=color, label=label)
        cross = dict(marker="x", markersize=5, color=color, linestyle="none")
        label = "x: reduced at the end" if column == 1 else None
        for row in rows.get("at_end", []):
            axes.plot(row[0], row[column], **cross, label=label)

    # The target of 10 % and no overhead at all.
    axes.axhline(10, color="#333333", linewidth=0.8, linestyle="--")
    axes.axhline(0, color="#bbbbbb", linewidth=0.8)
    axes.text(sizes[0], 10.3, "target", fontsize=7, color="#333333")

    # A tick for each bucket size that was measured.
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("bucket, MiB of gradients")
    axes.set_ylabel("added to backward, %")

    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_ylim(top=max(axes.get_ylim()[1], 14.5))
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="upper right")
    figure.tight_layout()
    picture.save(figure, args.output)


if __name__ == "__main__":
    main()
