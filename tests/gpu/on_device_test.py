"""on_device without a GPU: what it reads of its programs' output, whole runs on the stand-in device
of the tests, and the tables that gpu_tables.py makes of the lines.

RETORT_BIN names the program, RETORT_STAND_IN the module (else whole runs are skipped).
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
DOCUMENT = HERE.parent.parent / "docs/gpu.md"
RECORDED = HERE / "recorded"
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE / "on_device"))

import gpu_tables  # noqa: E402


def tables_of(path, beside=None):
    results = gpu_tables.Results(path)
    other = gpu_tables.Results(beside) if beside else None
    return {name: make(results, other) for name, make in gpu_tables.TABLES.items()}


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="on_device_test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def results(self, *lines, name="results"):
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path


class GpuTables(Folder):
    def test_the_document_has_the_tables_of_the_recorded_run(self):
        document = self.folder / "gpu.md"
        shutil.copy(DOCUMENT, document)
        command = [sys.executable, HERE / "on_device/gpu_tables.py", RECORDED / "third_run.jsonl"]
        command += ["--beside", RECORDED / "h100.jsonl", "--document", document]
        subprocess.run(command, check=True)
        self.assertEqual(
            document.read_text(),
            DOCUMENT.read_text(),
            "docs/gpu.md differs from what these write: " + " ".join(map(str, command)),
        )

    def test_tables_take_the_place_of_others_below_their_marks(self):
        document = (
            "# A\n\n<!-- table x/targets -->\n| old | table |\n|---|---|\nText.\n"
            "<!-- table y/sft -->\n\n| other |\n\n<!-- table x/sft -->\n"
        )
        tables = {"targets": ["| a |", "|---|"], "sft": ["| b |"]}
        self.assertEqual(
            gpu_tables.written(document, tables, "x"),
            "# A\n\n<!-- table x/targets -->\n\n| a |\n|---|\n\nText.\n"
            "<!-- table y/sft -->\n\n| other |\n\n<!-- table x/sft -->\n\n| b |\n",
        )

    def test_a_table_of_another_name_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "no such table; known: sft, traces"):
            gpu_tables.written("<!-- table x/speed -->\n", {"sft": []}, "x")

    def test_a_document_without_marks_is_an_error(self):
        document = self.folder / "plain.md"
        document.write_text("Text.\n")
        ended = subprocess.run(
            [sys.executable, HERE / "on_device/gpu_tables.py", RECORDED / "h100.jsonl"]
            + ["--document", document],
            capture_output=True,
            text=True,
        )
        self.assertEqual(ended.returncode, 1)
        self.assertIn("has no mark <!-- table h100/", ended.stderr)

    def test_what_was_not_measured_is_no_figure(self):
        path = self.results({"step": "sft", "name": "1.1G: MFU", "value": 51.0, "unit": "%"})
        path.write_text(path.read_text() + '{"step": "sft", "na')  # of a run that was ended
        tables = tables_of(path)
        self.assertEqual(
            tables["sft"][2:], ["| 1.117 G parameters, 2 x 4,096 | | | 51.0 % | | | |"]
        )
        for name in ("traces", "losses", "runs", "kernels"):
            self.assertEqual(tables[name], [], name)
        self.assertIn("| sft_bench: 50 % MFU | 51.0 %, reached |", tables["targets"])
        self.assertIn("| jsd: 0.45 | not measured |", tables["targets"])

    def test_a_kernel_stands_beside_the_fastest_shape_that_is_right(self):
        line = {"step": "kernels.sweep", "unit": "us", "kernel": "adamw", "size": "9 parameters"}
        shapes = [(512, True, 20.0, True), (256, False, 15.0, True), (128, False, 5.0, False)]
        path = self.results(
            *(
                {**line, "name": str(threads), "value": us, "threads": threads, "share": 4096}
                | {"least": 0, "blocks": 0, "in_use": used, "us": us, "gb_s": 2e3 / us}
                | {"of_copy": 1 / us, "right": right}
                for threads, used, us, right in shapes
            )
        )
        self.assertEqual(
            tables_of(path)["kernels"][2:],
            [
                "| adamw | 9 parameters | 512 threads, share 4,096 | 20.0 | 100 | 0.05 "
                "| 256 threads, share 4,096 | 15.0 |"
            ],
        )


class Script(Folder):
    """on_device with a package whose benchmarks and tests print what is recorded."""

    def package(self):
        package = self.folder / "package"
        (package / "tests").mkdir(parents=True)
        (package / "bin").mkdir()
        (package / "tests/run").symlink_to(HERE / "recorded_programs.py")
        (package / "tests/gpu_small_test").touch()
        if "RETORT_BIN" in os.environ:
            (package / "bin/retort").symlink_to(os.environ["RETORT_BIN"])
        return package

    def run_steps(self, *steps, **environment):
        output = self.folder / "output"
        ended = subprocess.run(
            [sys.executable, HERE / "on_device", "--output", output, "--tiny", "--minutes", "3"]
            + ["--only", ",".join(steps)],
            env={**os.environ, "RETORT_PACKAGE": str(self.package()), **environment},
            capture_output=True,
            text=True,
            timeout=240,
        )
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return output / "results.jsonl", ended.stdout

    def test_reads_what_programs_print(self):
        path, text = self.run_steps("ceilings", "sft", "losses", "tests.units", "kernels.sweep")
        results = gpu_tables.Results(path)
        self.assertEqual(results.value("sft", "1.1G: tokens/s"), 58059)
        self.assertEqual(results.value("sft", "0.6G short: MFU, causal by half"), 44.1)
        self.assertAlmostEqual(results.line("losses", "forward_kl, hidden")["textbook_ms"], 38.4)
        units = results.line("tests.units", "gpu_small_test")
        self.assertEqual((units["passed"], units["skipped"]), (["GpuSmall.Works"],
                                                               ["GpuSmall.NeedsTwo"]))  # fmt: skip

        # Of kernels the shape in use, a faster one, and one whose results are others.
        self.assertEqual(results.value("kernels.sweep", "adamw"), "2690.0 us, 2997 GB/s")
        self.assertIn("900.0 us by 512/0/0/0", results.value("kernels.sweep", "divergence_rows"))
        self.assertIsNotNone(results.value("kernels.sweep", "adamw 128/4096/0/0 is wrong"))
        self.assertRegex(text, r"kernels.sweep +ok")

        tables = tables_of(path)
        self.assertEqual(len(tables["sft"]), 2 + len(gpu_tables.SHAPES))
        self.assertEqual(len(tables["losses"]), 4)
        self.assertEqual(len(tables["kernels"]), 4)

    @unittest.skipUnless(
        {"RETORT_BIN", "RETORT_STAND_IN"} <= os.environ.keys(), "no program or no stand-in module"
    )
    def test_runs_recipes_on_the_stand_in(self):
        path, text = self.run_steps(
            "runs.grpo",
            "runs.distill",
            RETORT_CUDA_MODULE=os.environ.get("RETORT_STAND_IN", ""),
            OMP_NUM_THREADS="1",
        )
        results = gpu_tables.Results(path)
        for name in ("grpo", "distill"):
            self.assertRegex(text, rf"runs\.{name} +ok")
            medians = results.line(f"runs.{name}", "run")["medians"]
            self.assertGreater(medians["tokens_per_second"], 0)
            self.assertGreater(results.line(f"runs.{name}", "run")["peak"], 0)
        rows = "\n".join(tables_of(path)["runs"])
        self.assertTrue(re.search(r"grpo, 64 completions.*generation \d", rows), rows)


if __name__ == "__main__":
    unittest.main()
