"""Tables and pictures of the experiments of three_seeds.py, from the results that it keeps."""

import types

import picture
import plot_runs

PLAIN = types.SimpleNamespace(smooth=1, log=())  # curves as they are kept


def last_value(result, column):
    """Of the last evaluation, or of the whole run; None: the run does not have it."""
    curve = result["curves"].get(column.key)
    value = curve[-1][1] if curve else result["figures"].get(column.key)
    return None if value is None else value * column.scale


def values(results, variant, column):
    """{seed: value} of a variant's runs."""
    found = {seed: last_value(run, column) for (name, seed), run in results.items()
             if name == variant.name}  # fmt: skip
    return {seed: value for seed, value in found.items() if value is not None}


def spread(numbers):
    return max(numbers) - min(numbers)


def mean(numbers):
    return sum(numbers) / len(numbers)


def cell(numbers, digits):
    """The mean of the seeds, and half of their range where it can be seen."""
    if not numbers:
        return ""
    half = f"{spread(numbers) / 2:.{digits}f}"
    return f"{mean(numbers):.{digits}f}" + (f" ±{half}" if float(half) else "")


def verdict(ours, theirs, digits):
    """The difference of the means, and whether it is above the wider range of the two."""
    if not ours or not theirs:
        return ""
    difference = f"{mean(ours) - mean(theirs):+.{digits}f}"
    clear = abs(mean(ours) - mean(theirs)) > max(spread(ours), spread(theirs))
    return difference if clear else f"{difference}, unclear"


def row(experiment, results, variant, base):
    """Cells of a variant, with the differences to the base unless it is that itself."""
    cells = [variant.name]
    for column in experiment.columns:
        numbers = list(values(results, variant, column).values())
        cells.append(cell(numbers, column.digits))
        if not column.compared:
            continue
        theirs = [] if variant is base else list(values(results, base, column).values())
        cells.append(verdict(numbers, theirs, column.digits))
    return cells


def table(experiment, results, base):
    """Markdown: a row for the base, and for each variant beside it that was run."""
    head = [""]
    for column in experiment.columns:
        head += [column.title] + (["difference"] if column.compared else [])
    present = {name for name, _ in results}
    shown = [v for v in experiment.variants if v is base or v.beside == base.name]
    rows = [row(experiment, results, v, base) for v in shown if v.name in present]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def tables(experiment, results):
    """One for each variant that others stand beside, or that stands alone."""
    bases = {v.beside or v.name for v in experiment.variants}
    found = [table(experiment, results, v) for v in experiment.variants if v.name in bases]
    return "\n\n".join(found)


def draw(experiment, results, output):
    """The mean of the seeds and their range, in a panel for each of the experiment's."""
    curves = {}
    for (name, _), result in sorted(results.items(), key=lambda item: item[0][1]):
        series = {key: dict(points) for key, points in result["curves"].items()}
        curves.setdefault(name, []).append(series)

    figure, cells = plot_runs.grid(len(experiment.panels), experiment.columns_of_panels, "")
    for axes, (title, key, chosen) in zip(cells, experiment.panels):
        names = [v.name for v in experiment.variants if not chosen or v.name in chosen]
        runs = [(name, curves[name]) for name in names if name in curves]
        if runs:
            plot_runs.draw_panel(axes, [(key, title)], runs, PLAIN)
    figure.tight_layout()
    picture.save(figure, output)
