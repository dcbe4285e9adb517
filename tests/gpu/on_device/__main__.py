"""Measures and tests a package (docs/package.md) on a machine with one GPU, in a few minutes:

    python3 tests/on_device [--output DIR] [--minutes 7] [--only STEP,...] [--skip STEP,...]
                            [--list] [--tiny]

RETORT_PACKAGE names another package than the one that this folder lies in.

Steps run in an order of priority, each in a process and with a limit of its own; STEP is a name of
--list or what stands before its dot. DIR gets results.jsonl, a line for each number, and
logs.tar.gz. A table comes last on stdout, and below it what failed said last, in 11,500 characters
together. With --tiny all sizes are such that the stand-in device of the tests comes to the end; its
figures say nothing.
"""

import argparse
import pathlib
import shutil
import signal
import sys
import tempfile

from results import pack
from step_list import all_steps
from steps import child, run_steps, stop
from table import show_all


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: [n for n in text.split(",") if n]
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("on_device"))
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--only", type=names, default=[])
    parser.add_argument("--skip", type=names, default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = [s for batch in all_steps() for s in batch]
    if options.list:
        for step in known:
            print(f"{step.name:24} {step.limit} s at most")
        return 0
    if options.child:
        return child(options)
    for name in [*options.only, *options.skip]:
        if not any(s.name == name or s.name.startswith(name + ".") for s in known):
            parser.error(f"there is no step {name}; --list names them")
    options.output = options.output.resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    # All that lies there at the end is packed and removed.
    ours = {"results.jsonl", "logs.tar.gz"}
    strangers = sorted(p.name for p in options.output.iterdir() if p.name not in ours)
    if strangers:
        parser.error(f"{options.output} holds other files ({strangers[0]}); name an empty folder")
    (options.output / "results.jsonl").write_text("")
    options.work = pathlib.Path(tempfile.mkdtemp(prefix="on_device-"))
    signal.signal(signal.SIGTERM, stop)
    try:
        states = run_steps(options)
        show_all(states, options.output)
        pack(options.output)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    return 0 if all(state == "ok" for state, _, _ in states.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
