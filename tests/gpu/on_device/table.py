"""What stands at the end of stdout: a table, and what failed said last."""

import collections
import sys

from results import entries

STDOUT_LIMIT = 11500


def tail(output, step, lines):
    """The end of its log; of tests what each that failed said last."""
    path, failed = output / f"{step}.log", []
    for entry in entries(output):
        if entry["step"] == step and "output" in entry:
            end = [t[:160] for t in entry["output"].splitlines()[-8:]]
            failed.append("\n".join([f"{entry['name']}: {entry['value']}", *end]))
    if failed or not path.exists():
        return "\n".join(failed)
    text = path.read_text(errors="replace")[-20000:].splitlines()
    text = [t for t in text if not t.startswith("RESULT ")]
    return "\n".join(t[:160] for t in text[-lines:])


def value_text(line):
    value = line["value"]
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)


def table(states, output):
    results = collections.defaultdict(list)
    for entry in entries(output):
        if entry["show"]:
            results[entry["step"]].append(entry)
    lines = []
    for name, (state, seconds, note) in states.items():
        took = f"{seconds:.0f} s" if seconds else ""
        lines.append(f"{name:24} " + ", ".join(t for t in (state, took, note) if t))
        grouped = collections.defaultdict(list)  # "0.6G: kernels" and its like on one line
        for entry in results[name]:
            before, colon, rest = entry["name"].partition(": ")
            text = f"{value_text(entry)} {entry['unit']}".strip()
            if colon:
                grouped[before].append(f"{rest} {text}")
            else:
                lines.append(f"  {entry['name']:28} {text}"[:400])
        lines += [f"  {shape}: {'; '.join(values)}" for shape, values in grouped.items()]
    return "\n".join(lines)


def show_all(states, output):
    """The table, then ends of logs, which share what room is left."""
    text = table(states, output)[: STDOUT_LIMIT - 1500]
    tails = []
    for name, (state, _, _) in states.items():
        lines = (
            25
            if name.startswith("kernels.") and name != "kernels.sweep"
            else 15 if state.startswith(("failed", "killed")) else 0
        )
        if lines:
            tails.append((name, tail(output, name, lines)))
    print("=" * 40)
    print(text)
    room, parts = STDOUT_LIMIT - len(text) - 100 - 40 * len(tails), {}
    for left, (name, end) in zip(range(len(tails), 0, -1), sorted(tails, key=lambda t: len(t[1]))):
        parts[name] = end[-(room // left) :] if room > left else ""
        room -= len(parts[name])
    for name, _ in tails:
        print(f"---- {name}.log\n{parts[name]}")
    sys.stdout.flush()
