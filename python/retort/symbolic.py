"""`python -m retort.symbolic`: whether two answers are the same mathematics, for `type: numeric`.

    # recipe.yaml
    rewards:
      - {type: numeric, symbolic: [python, -m, retort.symbolic]}

Asked are the pairs of which the reward itself reads at least one as no number. They are compared
by math_verify where that is installed, else by sympy (`--with math_verify` or `--with sympy`
names one). It answers 1 for equal and 0 for not; also 0 for an answer that cannot be read, as TRL's
accuracy_reward does, and null, so that the completion has no score, where the label cannot be read,
or equality can neither be shown nor refuted within `--seconds` (5), or within the pair's part of
the reward's `timeout`, which comes with it, where that is less.

With sympy it reads formulas as TeX or calculators write them: `x^2+2x`, `\\frac{x}{2}`,
`\\sqrt[3]{x}`, `\\sin(x)`, `|x|`, tuples, sets, and equations. Letters are real unknowns. What a
model wrote is never run as a program.
"""
import argparse
import json
import os
import signal
import sys
import traceback

from retort.symbolic_compare import compare
from retort.symbolic_formula import Unreadable, read

_CHECKERS = ("math_verify", "sympy")


class TooLong(BaseException):
    """The time of a pair is over. No Exception, which a library would take for one of its own."""


class Limit:
    """A block that raises TooLong after `seconds`."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        signal.signal(signal.SIGALRM, self._end)
        # It is raised again, as an exception in a destructor is dropped.
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 0.5)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)

    @staticmethod
    def _end(*_):
        raise TooLong


def with_sympy(answer, label):
    """1, 0 or None."""
    try:
        wanted = read(label)
    except Unreadable:
        return None
    try:
        found = read(answer)
    except Unreadable:
        return 0
    try:
        equal = compare(found, wanted)
    except Exception:  # whatever a formula of a model makes sympy do, it shows nothing
        traceback.print_exc()
        return None
    return None if equal is None else int(equal)


def with_math_verify(answer, label):
    """1, 0 or None, as TRL's accuracy_reward. The time is limited here, not there."""
    from math_verify import parse, verify

    # It looks for TeX between marks; what the reward has taken out of its box is put into one.
    wanted = parse(f"\\boxed{{{label}}}", parsing_timeout=None)
    if not wanted:
        return None
    found = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    return int(bool(found) and bool(verify(wanted, found, timeout_seconds=None)))


def choose(name):
    """The function that compares. ImportError says what to install."""
    tried = []
    for checker in [name] if name else _CHECKERS:
        try:
            __import__(checker)
        except ImportError as error:
            tried.append(f"{checker} ({error})")
            continue
        return with_sympy if checker == "sympy" else with_math_verify
    raise ImportError(
        f"cannot import {' nor '.join(tried)} in {sys.executable}; "
        f"install one: {sys.executable} -m pip install {name or 'sympy'}"
    )


def serve(check, seconds, requests, answers):
    """Answers each request until there are no more; each has `seconds`, or as many as it names."""
    for line in requests:
        row = json.loads(line)
        try:
            with Limit(min(seconds, row.get("seconds", seconds))):
                score = check(row["answer"], row["label"])
        except TooLong:
            score = None
        answers.write(b'{"id": %d, "score": %s}\n' % (row["id"], json.dumps(score).encode()))
        answers.flush()


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="retort.symbolic", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--with", dest="checker", choices=_CHECKERS)
    parser.add_argument("--seconds", type=float, default=5, help="for one pair (default 5)")
    chosen = parser.parse_args(arguments)
    if not chosen.seconds > 0:
        parser.error("--seconds must be above 0")
    # What libraries print goes to stderr, as stdout is the protocol's.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        check = choose(chosen.checker)
    except ImportError as error:
        print(f"retort.symbolic: {error}", file=sys.stderr)
        return 2
    with answers:
        serve(check, chosen.seconds, sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
