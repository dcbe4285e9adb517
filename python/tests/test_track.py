"""Metrics for wandb and MLflow, with modules of these names that write down what they are told.

tests/package/wheel_test --full has the real ones.
"""
import json

from tests.support import FolderTest, python

WANDB = '''
import json

def tell(**what):
    with open("told", "a") as file:
        file.write(json.dumps(what) + "\\n")

class Run:
    def log(self, values, step):
        tell(step=step, values=values)
    def finish(self):
        tell(finished=True)

def init(**options):
    tell(**options)
    return Run()
'''
MLFLOW = '''
import types
from wandb import tell

def set_experiment(name):
    tell(experiment=name)

def start_run(run_id, run_name):
    tell(run_id=run_id, run_name=run_name)
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "0123"))

def log_params(values):
    tell(params=values)

def log_metrics(values, step):
    tell(step=step, values=values)

def end_run():
    tell(finished=True)
'''
ROWS = [
    {"step": 1, "loss": 0.5, "rewards/x": 1, "rewards/x/num_missing": None},
    {"step": 1, "eval_pass@4": 0.25},
    {"step": 2, "loss": None},
]


class TrackTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("wandb.py", WANDB)
        self.write("mlflow.py", MLFLOW)
        self.make_run("recipe: sft\ntrain:\n  max_steps: 2\n  betas: [0.9, 0.95]\n")

    def track(self, *arguments, rows=ROWS):
        (self.folder / "told").unlink(missing_ok=True)
        stdin = "".join(json.dumps(row) + "\n" for row in rows)
        result = python("-m", "retort.track", *arguments, stdin=stdin)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return [json.loads(line) for line in (self.folder / "told").read_text().splitlines()]

    def test_wandb(self):
        told = self.track("wandb", "run", "--project", "math", "--name", "first")
        self.assertEqual(told[0]["project"], "math")
        self.assertEqual((told[0]["name"], told[0]["resume"]), ("first", "allow"))
        self.assertEqual(told[0]["config"]["train"], {"max_steps": 2, "betas": [0.9, 0.95]})
        self.assertEqual(
            told[1:],
            [
                {"step": 1, "values": {"loss": 0.5, "rewards/x": 1}},
                {"step": 1, "values": {"eval_pass@4": 0.25}},
                {"finished": True},
            ],
        )

    def test_a_run_of_wandb_goes_on_until_it_begins_anew(self):
        first = self.track("wandb", "run")[0]
        self.assertRegex(first["id"], "^[0-9a-f]{8}$")
        self.assertEqual(first["name"], "run")
        self.assertEqual(self.track("wandb", "run")[0]["id"], first["id"])
        (self.folder / "run/logs/track-wandb.id").unlink()   # --overwrite removes logs/
        self.assertNotEqual(self.track("wandb", "run")[0]["id"], first["id"])

    def test_mlflow(self):
        told = self.track("mlflow", "run", "--project", "math")
        self.assertEqual(
            told,
            [
                {"experiment": "math"},
                {"run_id": None, "run_name": "run"},
                {"params": {"recipe": "sft", "train.max_steps": 2, "train.betas": "[0.9, 0.95]"}},
                {"step": 1, "values": {"loss": 0.5, "rewards.x": 1}},
                {"step": 1, "values": {"eval_pass_4": 0.25}},
                {"finished": True},
            ],
        )

    def test_a_run_of_mlflow_goes_on(self):
        self.track("mlflow", "run")
        told = self.track("mlflow", "run", rows=[{"step": 3, "loss": 1}])
        self.assertEqual(told[1], {"run_id": "0123", "run_name": "run"})
        self.assertEqual(told[2:], [{"step": 3, "values": {"loss": 1}}, {"finished": True}])

    def test_what_is_missing_is_named(self):
        result = python("-m", "retort.track", "wandb", "nowhere")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'nowhere' is no folder; expected the output_dir of a run", result.stderr)
        (self.folder / "mlflow.py").unlink()
        result = python("-m", "retort.track", "mlflow", "run")
        self.assertEqual(result.returncode, 2)
        self.assertIn("-m pip install mlflow", result.stderr)
