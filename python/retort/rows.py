"""Files of JSON objects, one a line, which another process may be writing."""
import json


class DamagedFileError(ValueError):
    """A file of a run does not hold what it should; the message names file and line."""


def read_rows(path):
    """The objects of a file, in order; none if the file is not there.

    A last line without its end is being written, or was cut short by a crash: it is left out.
    """
    rows = []
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return rows
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DamagedFileError(f"{path}:{number}: not a JSON object: {error}") from None
            if not isinstance(row, dict):
                shown = line[:60].decode(errors="replace").strip()
                raise DamagedFileError(f"{path}:{number}: expected a JSON object, got '{shown}'")
            rows.append(row)
    return rows


def is_evaluation(row):
    """Whether a row of metrics.jsonl is an evaluation; the others are training steps."""
    return any(name.startswith("eval_") for name in row)


def read_metrics(path):
    """The rows of a metrics.jsonl, each step once: training steps and evaluations.

    A run that went on from a checkpoint may have written steps a second time. Where a row goes back
    to a step, what came at that step or later belongs to a life of the run that is over.
    """
    kept = []
    for number, row in enumerate(read_rows(path), 1):
        if type(row.get("step")) is not int:
            raise DamagedFileError(f"{path}:{number}: expected a row with a step, an integer")
        # A step's evaluation comes after the step.
        place = (row["step"], is_evaluation(row))
        while kept and kept[-1][0] >= place:
            kept.pop()
        kept.append((place, row))
    return [row for _, row in kept]


def to_frame(rows, columns=(), numeric=False):
    """A DataFrame with a row for each of `rows`; `columns` come first, and are there without rows.

    numeric: every value is a number or null.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "a DataFrame needs pandas (python -m pip install pandas); the methods whose names end "
            "in _rows give lists of dicts without it"
        ) from error
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    frame = pandas.DataFrame(rows, columns=names)
    if not numeric:
        return frame
    # A column of nulls alone has no number that its type could follow from.
    return frame.apply(pandas.to_numeric)
