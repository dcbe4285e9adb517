"""`python -m retort.track wandb|mlflow RUN`: a run's metrics for wandb or MLflow.

    # recipe.yaml
    output_dir: runs/gsm8k
    launch:
      metrics_command: [python, -m, retort.track, wandb, runs/gsm8k, --project, math]

Reads the lines of metrics.jsonl from stdin, as `launch.metrics_command` gets them. Which run of
wandb or MLflow it is stands in the run's logs/: one that is resumed goes on there, and one that
begins anew (--overwrite) is a new one. Where things are kept, and under which account, is said in
wandb's and MLflow's own variables: WANDB_MODE, WANDB_DIR, WANDB_API_KEY, MLFLOW_TRACKING_URI.
"""
import argparse
import json
import re
import secrets
import sys

from retort.run import open_run


class Wandb:
    """A row is a step of wandb's, which passes over steps below one that it has."""

    def __init__(self, run, given):
        import wandb

        identifier = _known_identifier(run, "wandb") or secrets.token_hex(4)
        self._run = wandb.init(
            project=given.project,
            name=given.name,
            id=identifier,
            resume="allow",
            config=run.recipe(),
        )
        _keep_identifier(run, "wandb", identifier)

    def log(self, step, values):
        self._run.log(values, step=step)

    def finish(self):
        self._run.finish()


class Mlflow:
    """A row is a step of MLflow's, which keeps both where a step comes twice, the later one last.

    A slash in a name is a point here: where MLflow keeps files, `rewards/x` could not be beside
    `rewards/x/num_missing`.
    """

    def __init__(self, run, given):
        import mlflow

        self._mlflow = mlflow
        identifier = _known_identifier(run, "mlflow")
        mlflow.set_experiment(given.project)
        started = mlflow.start_run(run_id=identifier, run_name=given.name)
        if not identifier:
            mlflow.log_params(_flat(run.recipe()))
            _keep_identifier(run, "mlflow", started.info.run_id)

    def log(self, step, values):
        named = {_name_of(name): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step)

    def finish(self):
        self._mlflow.end_run()


def _name_of(name):
    return re.sub(r"[^\w. -]", "_", name.replace("/", "."))


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow}


def _identifier_file(run, tracker):
    # Below logs/, so that --overwrite takes it away.
    return run.folder / "logs" / f"track-{tracker}.id"


def _known_identifier(run, tracker):
    path = _identifier_file(run, tracker)
    return path.read_text().strip() if path.exists() else None


def _keep_identifier(run, tracker, identifier):
    path = _identifier_file(run, tracker)
    path.parent.mkdir(exist_ok=True)
    path.write_text(identifier + "\n")


def _flat(values, prefix=""):
    """{"train.max_steps": 10, ...}: what is below a list is one value."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return flat


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m retort.track",
        description="Feeds a run's metrics, which come on stdin, to wandb or MLflow.",
    )
    parser.add_argument("tracker", choices=list(TRACKERS))
    parser.add_argument("run", help="the run's folder (output_dir)")
    parser.add_argument("--project", default="retort", help="of wandb, or experiment of MLflow")
    parser.add_argument("--name", help="of the run there (default: the name of its folder)")
    return parser.parse_args(arguments)


def main(arguments):
    given = parse(arguments)
    try:
        run = open_run(given.run)
        given.name = given.name or run.folder.resolve().name
        tracker = TRACKERS[given.tracker](run, given)
    except ModuleNotFoundError as error:
        print(
            f"retort.track: {error}: {sys.executable} -m pip install {given.tracker}",
            file=sys.stderr,
        )
        return 2
    except FileNotFoundError as error:
        print(f"retort.track: {error}", file=sys.stderr)
        return 2

    for line in sys.stdin:
        row = json.loads(line)
        step = row.pop("step")
        values = {name: value for name, value in row.items() if value is not None}
        if values:
            tracker.log(step, values)
    tracker.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
