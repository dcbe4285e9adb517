"""`python -m retort.reward MODULE:FUNCTION`: a Python function as a reward of `type: command`.

    # my_rewards.py
    def score(row):
        return float(row["reference"] in row["completion"])

    # recipe.yaml
    rewards:
      - {type: command, name: mine, argv: [python, -m, retort.reward, "my_rewards:score"]}

The function gets one completion at a time, as the dict that docs/rewards.md shows under `command`,
and returns a number, or None for a completion that cannot be scored. Anything else, and whatever it
raises, ends this program, and with it the run, with a message that names function and row.
"""
import importlib
import json
import math
import os
import sys
import traceback

# Of a row, and of what a function said, in a message: the run keeps the last 2000 bytes.
_SHOWN_OF_TEXT = 200
_SHOWN = 800


class BadScore(Exception):
    """The function returned what is no score."""


def load_function(name):
    """The function that `module:function` names. ValueError says what is wrong with the name."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ValueError(f"'{name}' names no function; expected MODULE:FUNCTION, my_rewards:score")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that this one imports may be what is missing.
        raise ValueError(
            f"cannot import '{module_name}' ({error}); modules are looked for in {os.getcwd()}, "
            "in PYTHONPATH, and in what is installed for " + sys.executable
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"'{module_name}' has no '{path}'")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"'{name}' is {type(found).__name__}; expected a function")
    return found


def to_score(value):
    """What a function returned as a JSON number or null. BadScore if it is neither."""
    if value is None:
        return None
    # Numbers of numpy and tensors with one element have it too; texts and lists do not.
    if not hasattr(value, "__float__"):
        raise BadScore(f"returned {type(value).__name__}: {_cut(repr(value), _SHOWN_OF_TEXT)}")
    try:
        score = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        shown = _cut(repr(value), _SHOWN_OF_TEXT)
        raise BadScore(f"returned {shown}, which is not one number: {error}") from None
    if not math.isfinite(score):
        raise BadScore(f"returned {score}, which is not finite")
    return score


def take_streams():
    """The protocol's own streams. The function, what it imports and what it starts read nothing
    instead of requests, and print to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    return requests, answers


def serve(name, function, requests, answers):
    """Answers each request until there are no more. The exit code."""
    for line in requests:
        row = json.loads(line)
        number = row.pop("id")
        seen = _seen(row)  # before the function changes it
        try:
            score = to_score(function(row))
        except BadScore as error:
            return _fail(f"{name} {error}; expected a finite number, or None", seen)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            return _fail(f"{name} raised {type(error).__name__}: {error}", seen)
        answers.write(b'{"id": %d, "score": %s}\n' % (number, json.dumps(score).encode()))
        answers.flush()
    return 0


def _cut(text, characters):
    return text if len(text) <= characters else text[:characters] + "..."


def _seen(row):
    """A row as messages show it."""
    texts = {key: _cut(v, _SHOWN_OF_TEXT) if isinstance(v, str) else v for key, v in row.items()}
    return _cut(json.dumps(texts, ensure_ascii=False), _SHOWN)


def _fail(what, seen):
    sys.stdout.flush()  # what was printed comes before it
    print(f"the row: {seen}\nretort.reward: {_cut(what, _SHOWN)}", file=sys.stderr, flush=True)
    return 1


def main(arguments):
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    requests, answers = take_streams()
    with requests, answers:
        try:
            function = load_function(arguments[0])
        except ValueError as error:
            print(f"retort.reward: {error}", file=sys.stderr)
            return 2
        return serve(arguments[0], function, requests, answers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
