"""A run's folder, as docs/cli.md describes it."""
import json
import re
from pathlib import Path

from retort.recipe_text import parse_recipe
from retort.rows import DamagedFileError, is_evaluation, read_metrics, read_rows, to_frame

_SAMPLES = re.compile(r"step-(\d+)-rank-(\d+)\.jsonl")


def open_run(folder):
    """The run in a folder (`output_dir`), whether it goes on or is over."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"'{folder}' is no folder; expected the output_dir of a run")
    if not (folder / "recipe.resolved.yaml").is_file():
        raise FileNotFoundError(
            f"'{folder}' holds no run: there is no recipe.resolved.yaml, which `retort launch` "
            "writes first into its output_dir"
        )
    return Run(folder)


class Run:
    """What a run has written so far. Each method reads the files anew.

    Methods whose names end in _rows return lists of dicts, their namesakes pandas DataFrames.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    def __repr__(self):
        return f"retort.open_run({str(self.folder)!r})"

    @property
    def final(self):
        """The folder of the result, or None while there is none."""
        final = self.folder / "final"
        return final if final.exists() else None

    def recipe(self):
        """The recipe with every value that is used, as a dict."""
        path = self.folder / "recipe.resolved.yaml"
        try:
            return parse_recipe(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DamagedFileError(f"{path}: {error}") from None

    def status(self):
        """What `retort status` shows, as a dict: status.json (docs/cli.md lists its keys)."""
        path = self.folder / "status.json"
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}; a run writes it when it starts")
        try:
            return json.loads(path.read_bytes())
        except ValueError as error:
            raise DamagedFileError(f"{path}: not the status of a run: {error}") from None

    # ---- metrics.jsonl ---------------------------------------------------------------------------
    def metrics_rows(self):
        """The logged training steps, each once. A value that was not finite is None."""
        return [row for row in self._metrics() if not is_evaluation(row)]

    def evaluations_rows(self):
        """The evaluations, each step once; their names begin with `eval_`."""
        return [row for row in self._metrics() if is_evaluation(row)]

    def metrics(self):
        return to_frame(self.metrics_rows(), ["step"], numeric=True)

    def evaluations(self):
        return to_frame(self.evaluations_rows(), ["step"], numeric=True)

    def _metrics(self):
        return read_metrics(self.folder / "metrics.jsonl")

    # ---- what was drawn, and by which weights ----------------------------------------------------
    def samples_rows(self, step=None):
        """What the student drew, of all steps or of one, with `generation.save_samples: true`."""
        found = []
        for path in (self.folder / "samples").glob("*.jsonl"):
            match = _SAMPLES.fullmatch(path.name)
            if match and step in (None, int(match[1])):
                found.append((int(match[1]), int(match[2]), path))
        return [
            {"step": of_step, "rank": rank, **row}
            for of_step, rank, path in sorted(found)
            for row in read_rows(path)
        ]

    def samples(self, step=None):
        return to_frame(self.samples_rows(step), ["step", "rank"])

    def receipts_rows(self):
        """Each version of the weights that an external generator took."""
        return read_rows(self.folder / "receipts.jsonl")

    def receipts(self):
        return to_frame(self.receipts_rows(), ["process", "weight_version"])
