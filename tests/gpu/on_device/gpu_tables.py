"""Writes the tables of docs/gpu.md from the results.jsonl of on_device:

    python3 tests/gpu/on_device/gpu_tables.py RESULTS [--beside RESULTS] [--document docs/gpu.md]

Without a document the tables go to stdout, each below the mark that places it in one:

    <!-- table third_run/sft -->

With --document the table below each mark of these results (third_run: the file's name) is written
anew, and so is one that is not there yet; other lines stay. --beside adds what another run had, in
a column named after its card. What was not measured is an empty cell, and a table without any
figure is left out.
"""

import argparse
import json
import pathlib
import re
import sys

SHAPES = {
    "1.1G": "1.117 G parameters, 2 x 4,096",
    "0.6G": "0.6B's shape, 2 x 4,096",
    "0.6G short": "0.6B's shape, 32 x 256",
}
# A loss's name in loss_memory_bench: how docs/gpu.md calls it, and its products of all rows.
LOSSES = {
    "forward_kl, hidden": ("forward_kl, hidden states", 4),
    "forward_kl + ce, hidden": ("forward_kl + cross-entropy", 4),
    "jsd, hidden": ("jsd, hidden states", 4),
    "forward_kl, top-64 bucket": ("forward_kl, top-64 bucket", None),
    "cross-entropy": ("cross-entropy", 3),
}
LOSS_PRODUCT = 2 * 4096 * 4096 * 128256  # FLOP of one
RUNS = {
    "grpo": "grpo, 64 completions of 64 tokens",
    "grpo_wide": "grpo, 256 completions",
    "dpo": "dpo",
    "distill": "distill from 1.7B's shape, hidden_states, device map",
    "reward_model": "reward_model",
    "sft_lora": "sft with LoRA",
    "on_policy_distill": "on_policy_distill, 3,072 tokens a step",
    "rejection_sampling": "rejection_sampling",
    "sft": "sft",
    "sft_mixed": "sft, rows of 50 to 290 tokens",
}
NEW_TOKENS = 64  # of a completion
MARK = re.compile(r"<!-- table (\w+)/(\w+) -->$")


class Results:
    """The lines of a file by step and name; a later one counts."""

    def __init__(self, path):
        self.name, self.lines = pathlib.Path(path).stem, {}
        for text in pathlib.Path(path).read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the last line of a run that was ended may be half one
            # A trace's single kernels stand beside their categories, and may have the same names.
            if "category" not in line:
                self.lines[line["step"], line["name"]] = line

    def line(self, step, name):
        return self.lines.get((step, name), {})

    def value(self, step, name):
        return self.line(step, name).get("value")

    def of_step(self, step):
        return [line for (of, _), line in self.lines.items() if of == step]

    def card(self):
        """"H100", of "NVIDIA H100 80GB HBM3, 580.159.04, ..."."""
        found = re.match(r"(?:NVIDIA )?(\w+)", str(self.value("ceilings", "device") or ""))
        return found.group(1) if found else "the other"


def shown(value, form="{:,.0f}"):
    return "" if value is None else form.format(value)


def quotient(a, b):
    return None if a is None or not b else a / b


def table(head, rows):
    """Markdown; nothing where no row has a figure."""
    rows = [row for row in rows if any(row[1:])]
    if not rows:
        return []
    text = lambda row: "|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|"
    return [text(head), "|" + "---|" * len(head), *map(text, rows)]


def sft(results, beside):
    rows = []
    for shape, name in SHAPES.items():
        of = lambda what: results.value("sft", f"{shape}: {what}")
        plan = quotient(of("plan"), of("peak"))
        row = [
            name,
            shown(of("tokens/s")),
            shown(of("step"), "{:.3f}"),
            shown(of("MFU"), "{:.1f} %"),
            shown(of("MFU, causal by half"), "{:.1f} %"),
            shown(of("peak")),
            shown(None if plan is None else 100 * (plan - 1), "{:+.0f} %"),
        ]
        if beside:
            row.append(shown(beside.value("sft", f"{shape}: tokens/s")))
        rows.append(row)
    head = ["sft_bench", "tokens/s", "s a step", "MFU", "causal by half", "peak MiB", "plan"]
    return table(head + ([f"{beside.card()}, tokens/s"] if beside else []), rows)


def traces(results, _):
    """Milliseconds of a traced step by what took them."""

    def columns(parts):
        ours = {k: v for k, v in parts.items() if k.startswith("retort_")}
        adamw = ours.pop("retort_adamw", 0) + parts.get("AdamW", 0)
        yield parts.get("device span")
        yield parts.get("products", 0) + parts.get("products to fp32", 0)
        yield parts.get("attention", 0)
        yield adamw
        yield sum(ours.values())
        yield parts.get("element by element", 0)
        yield parts.get("copies", 0)
        yield sum(parts.get(k, 0) for k in ("gradient norm", "norms", "other"))
        yield parts.get("device idle")

    rows = []
    for shape, name in SHAPES.items():
        prefix = f"{shape}: "
        parts = {
            line["name"].removeprefix(prefix): line["value"]
            for line in results.of_step("sft")
            if line["name"].startswith(prefix) and line["unit"] == "ms"
        }
        if "device span" in parts:
            rows.append([name, *(shown(v, "{:.1f}") for v in columns(parts))])
    head = ["", "span", "products", "attention", "AdamW", "our other kernels"]
    return table([*head, "element by element", "copies", "norm, other", "idle"], rows)


def losses(results, _):
    rate, rows = results.value("ceilings", "product"), []
    for name, (text, products) in LOSSES.items():
        line = results.line("losses", name)
        ms, book = line.get("ms"), line.get("textbook_ms")
        alone = quotient(products and 1e-9 * products * LOSS_PRODUCT, rate)
        rows.append(
            [
                text,
                shown(line.get("mib")),
                shown(quotient(line.get("mib"), line.get("textbook_mib")), "{:.2f}"),
                shown(ms, "{:.1f}"),
                shown(book, "{:.1f}"),
                shown(quotient(ms, book), "{:.2f}"),
                shown(alone if ms else None, "{:.1f}"),
            ]
        )
    head = ["losses", "MiB", "ratio", "ms", "textbook", "ratio", "products alone, ms"]
    return table(head, rows)


def run_medians(results, name):
    return (results.line(f"runs.{name}", "run") if results else {}).get("medians", {})


def runs(results, beside):
    rows = []
    for name, text in RUNS.items():
        line, medians = results.line(f"runs.{name}", "run"), run_medians(results, name)
        generation, push = medians.get("generation_time"), medians.get("weight_sync_time")
        if name.startswith("grpo") and generation is not None and push is not None:
            text += f" (generation {generation:.3f} s, push {push:.3f})"
        round_of = line.get("longest_generation")
        if name == "rejection_sampling" and round_of is not None:
            text += f" (a round's generation {round_of:.3f} s)"
        peak = line.get("peak", medians.get("peak_device_memory"))
        row = [
            text,
            shown(medians.get("tokens_per_second")),
            shown(medians.get("step_time"), "{:.3f}"),
            shown(None if peak is None else peak / 2**30, "{:.1f}"),
        ]
        if beside:
            row.append(shown(run_medians(beside, name).get("step_time"), "{:.3f}"))
        if any(row[1:4]):
            rows.append(row)
    head = ["medians behind the third step", "tokens/s", "s a step", "peak GiB"]
    return table(head + ([f"{beside.card()}, s a step"] if beside else []), rows)


def shape_text(line):
    parts = [f"{line['threads']} threads"]
    parts += [f"{key} {line[key]:,}" for key in ("share", "least", "blocks") if line[key]]
    return ", ".join(parts)


def kernels(results, _):
    """Each kernel as it is launched, and the fastest right shape of the others."""
    rows, lines = [], [l for l in results.of_step("kernels.sweep") if "kernel" in l]
    for used in (l for l in lines if l["in_use"]):
        others = [
            l for l in lines if l["kernel"] == used["kernel"] and not l["in_use"] and l["right"]
        ]
        best = min(others, key=lambda l: l["us"], default=None)
        rows.append(
            [
                used["kernel"],
                used["size"],
                shape_text(used),
                shown(used["us"], "{:,.1f}"),
                shown(used["gb_s"]),
                shown(used["of_copy"], "{:.2f}"),
                shape_text(best) if best else "",
                shown(best and best["us"], "{:,.1f}"),
            ]
        )
    head = ["kernel", "size", "in use", "us", "GB/s", "of a copy", "best other", "us"]
    return table(head, rows)


def targets(results, _):
    """What issue and design ask of one GPU: whether it was reached."""
    mfu = results.value("sft", "1.1G: MFU")
    ratio = lambda name: quotient(
        results.line("losses", name).get("ms"), results.line("losses", name).get("textbook_ms")
    )
    token = lambda name: quotient(run_medians(results, name).get("generation_time"), NEW_TOKENS)
    milliseconds = lambda seconds: None if seconds is None else 1e3 * seconds
    asked = [
        ("sft_bench: 50 % MFU", mfu, "{:.1f} %", lambda v: v >= 50),
        ("forward_kl: 0.70 of the textbook's time", ratio("forward_kl, hidden"), "{:.2f}",
         lambda v: v <= 0.70),
        ("jsd: 0.45", ratio("jsd, hidden"), "{:.2f}", lambda v: v <= 0.45),
        ("cross-entropy: 0.85", ratio("cross-entropy"), "{:.2f}", lambda v: v <= 0.85),
        ("grpo with 64 completions: 0.8 s a step", run_medians(results, "grpo").get("step_time"),
         "{:.3f} s", lambda v: v <= 0.8),
        ("generator: 3.0 ms a token of 64 sequences", milliseconds(token("grpo")), "{:.1f} ms",
         lambda v: v <= 3.0),
        ("generator: 9 ms a token of 256 sequences", milliseconds(token("grpo_wide")), "{:.1f} ms",
         lambda v: v <= 9),
    ]  # fmt: skip
    rows = [
        [name, f"{shown(v, form)}, {'reached' if good(v) else 'missed'}" if v is not None else
         "not measured"]
        for name, v, form, good in asked
    ]  # fmt: skip
    return table(["target", "reached"], rows)


TABLES = {
    "sft": sft,
    "traces": traces,
    "losses": losses,
    "runs": runs,
    "kernels": kernels,
    "targets": targets,
}


def written(document, tables, name):
    """The document with each table of these results below its mark."""
    lines, at = [], 0
    old = document.splitlines()
    while at < len(old):
        lines.append(old[at])
        mark = MARK.match(old[at])
        at += 1
        if not mark or mark.group(1) != name:
            continue
        if mark.group(2) not in tables:
            sys.exit(f"error: {old[at - 1]}: there is no such table; known: {', '.join(TABLES)}")
        # The table that stands there goes; an empty line before it stays.
        while at < len(old) and not old[at]:
            lines.append(old[at])
            at += 1
        if lines[-1]:
            lines.append("")
        while at < len(old) and old[at].startswith("|"):
            at += 1
        lines += tables[mark.group(2)]
        if at < len(old) and old[at] and tables[mark.group(2)]:
            lines.append("")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path, help="results.jsonl")
    parser.add_argument("--beside", type=pathlib.Path, help="those of another run")
    parser.add_argument("--name", help="of the marks; default: the file's name")
    parser.add_argument("--document", type=pathlib.Path, help="the file that is written")
    options = parser.parse_args()
    results = Results(options.results)
    beside = Results(options.beside) if options.beside else None
    name = options.name or results.name
    tables = {key: make(results, beside) for key, make in TABLES.items()}
    if not options.document:
        for key, lines in tables.items():
            if lines:
                print(f"<!-- table {name}/{key} -->\n", *lines, "", sep="\n")
        return
    before = options.document.read_text()
    if not any(m and m.group(1) == name for m in map(MARK.match, before.splitlines())):
        sys.exit(f"error: {options.document} has no mark <!-- table {name}/... -->")
    options.document.write_text(written(before, tables, name))


if __name__ == "__main__":
    main()
