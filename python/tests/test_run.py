"""A run's folder."""
import unittest

import retort
from tests.support import FolderTest

try:
    import pandas
except ImportError:
    pandas = None


class OpenRunTest(FolderTest):
    def test_refuses_what_is_no_run(self):
        (self.folder / "empty").mkdir()
        for name, says in (("nothing", "is no folder"), ("empty", "no recipe.resolved.yaml")):
            with self.assertRaises(FileNotFoundError) as caught:
                retort.open_run(name)
            self.assertIn(says, str(caught.exception))

    def test_a_run_that_has_just_begun_is_empty(self):
        run = retort.open_run(self.make_run())
        for method in ("metrics", "evaluations", "samples", "receipts"):
            self.assertEqual(getattr(run, f"{method}_rows")(), [])
        self.assertIsNone(run.final)
        with self.assertRaises(FileNotFoundError):
            run.status()

    def test_reads_anew_each_time(self):
        run = retort.open_run(self.make_run())
        self.write_rows("run/metrics.jsonl", [{"step": 1, "loss": None}])
        self.assertEqual(run.metrics_rows(), [{"step": 1, "loss": None}])
        self.write_rows("run/metrics.jsonl", [{"step": 1, "loss": 2}, {"step": 1, "eval_loss": 3}])
        self.assertEqual(run.metrics_rows(), [{"step": 1, "loss": 2}])
        self.assertEqual(run.evaluations_rows(), [{"step": 1, "eval_loss": 3}])

    def test_status(self):
        run = retort.open_run(self.make_run())
        path = self.write("run/status.json", '{"state": "running", "step": 7}')
        self.assertEqual(run.status(), {"state": "running", "step": 7})
        path.write_text('{"state": ')
        with self.assertRaises(retort.DamagedFileError) as caught:
            run.status()
        self.assertIn(str(path), str(caught.exception))

    def test_samples_are_in_the_order_of_steps(self):
        run = retort.open_run(self.make_run())
        for step, rank in ((10, 0), (9, 1), (9, 0)):
            self.write_rows(f"run/samples/step-{step}-rank-{rank}.jsonl", [{"reward": step + rank}])
        self.write("run/samples/step-11-rank-0.jsonl.tmp-1", "half")
        expected = [
            {"step": 9, "rank": 0, "reward": 9},
            {"step": 9, "rank": 1, "reward": 10},
            {"step": 10, "rank": 0, "reward": 10},
        ]
        self.assertEqual(run.samples_rows(), expected)
        self.assertEqual(run.samples_rows(step=9), expected[:2])

    def test_receipts_and_result(self):
        run = retort.open_run(self.make_run())
        self.write_rows("run/receipts.jsonl", [{"process": "generator/0", "weight_version": 3}])
        self.assertEqual(run.receipts_rows()[0]["weight_version"], 3)
        self.write("run/checkpoint-2/config.json", "{}")
        (self.folder / "run/final").symlink_to("checkpoint-2")
        self.assertEqual(run.final, self.folder / "run/final")

    def test_the_recipe_names_its_file_when_it_is_damaged(self):
        run = retort.open_run(self.make_run("recipe: sft\nnonsense\n"))
        with self.assertRaises(retort.DamagedFileError) as caught:
            run.recipe()
        self.assertIn("recipe.resolved.yaml: line 2: ", str(caught.exception))

    @unittest.skipIf(pandas, "pandas is installed here")
    def test_without_pandas_it_is_named(self):
        run = retort.open_run(self.make_run())
        with self.assertRaises(ImportError) as caught:
            run.metrics()
        self.assertIn("pip install pandas", str(caught.exception))

    # tests/package/wheel_test has it, and compares whole runs.
    @unittest.skipUnless(pandas, "pandas is not installed")
    def test_frames(self):
        run = retort.open_run(self.make_run())
        self.assertEqual(list(run.metrics().columns), ["step"])
        self.assertEqual(list(run.samples().columns), ["step", "rank"])
        self.write_rows(
            "run/metrics.jsonl",
            [{"step": 1, "loss": None, "x": None}, {"step": 2, "loss": 2, "later": 1}],
        )
        frame = run.metrics()
        self.assertEqual(list(frame.columns), ["step", "loss", "x", "later"])
        self.assertEqual([str(kind) for kind in frame.dtypes], ["int64"] + ["float64"] * 3)


class PackageTest(unittest.TestCase):
    def test_names_what_it_has(self):
        for name in retort.__all__:
            self.assertIn(name, dir(retort))
            self.assertIsNotNone(getattr(retort, name))
        with self.assertRaises(AttributeError):
            retort.train
