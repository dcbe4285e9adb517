"""launch, cache and eval, with a script as the program."""
import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
from unittest import mock

import retort
from retort import commands
from tests.support import PACKAGE_FOLDER, FolderTest

# Writes down its arguments, one a line, and does what the variables say.
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" >"$ARGUMENTS"
printf '%s' "$STDERR" >&2
printf '%s' "$STDOUT"
exit "$STATUS"
"""


class CommandsTest(FolderTest):
    def setUp(self):
        super().setUp()
        os.environ["RETORT_BIN"] = str(self.write_script("retort", PROGRAM))
        os.environ["ARGUMENTS"] = str(self.folder / "arguments")
        self.run_folder = self.make_run()
        self.answer(f"step 1\ndone: {self.run_folder}/final\n")

    def answer(self, stdout="", stderr="", status=0):
        os.environ.update(STDOUT=stdout, STDERR=stderr, STATUS=str(status))

    def arguments(self):
        return pathlib.Path(os.environ["ARGUMENTS"]).read_text().splitlines()

    def quietly(self, function, *arguments, **options):
        """What the function returns, and what was shown."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = function(*arguments, **options)
        return result, out.getvalue(), err.getvalue()

    def test_launch_returns_the_run(self):
        run, out, err = self.quietly(retort.launch, pathlib.Path("a recipe.yaml"))
        self.assertEqual(run.folder, self.run_folder)
        self.assertEqual(self.arguments(), ["launch", "a recipe.yaml"])
        self.assertEqual((out, err), (os.environ["STDOUT"], ""))

    def test_values_arrive_as_what_they_are(self):
        class Number:
            def item(self):
                return 3

        overrides = {
            "a": 1,
            "b": 1e-05,
            "c": True,
            "d": None,
            "e": "10",
            "f": "x: [\u00e9\n",
            "g": [{"path": pathlib.Path("p q")}],
            "h": Number(),
        }
        self.quietly(retort.launch, "r.yaml", overrides, resume=True, overwrite=False)
        self.assertEqual(
            self.arguments(),
            ["launch", "r.yaml", "--resume", "a=1", "b=1e-05", "c=true", "d=null", 'e="10"',
             'f="x: [\u00e9\\n"', 'g=[{"path": "p q"}]', "h=3"],
        )
        with self.assertRaises(ValueError):
            retort.launch("r.yaml", {"a": float("nan")})

    def test_quiet_shows_nothing(self):
        self.answer(os.environ["STDOUT"], "a warning\n")
        _, out, err = self.quietly(retort.launch, "r.yaml", overwrite=True, quiet=True)
        self.assertEqual((out, err), ("", ""))
        self.assertEqual(self.arguments(), ["launch", "r.yaml", "--overwrite"])

    def test_an_error_has_code_and_text(self):
        self.answer("step 1\n", "retort: error: r.yaml:3: no such key\n", 2)
        with self.assertRaises(retort.CommandError) as caught:
            self.quietly(retort.launch, "r.yaml")
        self.assertEqual(caught.exception.exit_code, 2)
        self.assertEqual(caught.exception.message, "retort: error: r.yaml:3: no such key")
        self.assertIn("exit code 2: retort: error: r.yaml:3", str(caught.exception))

    def test_a_run_that_was_stopped_says_how_it_goes_on(self):
        self.answer("step 1\nstopped; continue with: retort launch r.yaml --resume\n", "", 4)
        with self.assertRaises(retort.CommandError) as caught:
            self.quietly(retort.launch, "r.yaml")
        self.assertEqual(caught.exception.exit_code, 4)
        self.assertTrue(caught.exception.message.startswith("stopped; continue with"))

    def test_a_signal_is_named(self):
        self.write_script("retort", "#!/bin/sh\nkill -9 $$\n")
        with self.assertRaises(retort.CommandError) as caught:
            self.quietly(retort.launch, "r.yaml")
        self.assertIn("signal 9", str(caught.exception))

    def test_a_recipe_that_trains_elsewhere_is_no_run(self):
        self.answer("apiVersion: v1\n")
        with self.assertRaises(RuntimeError) as caught:
            self.quietly(retort.launch, "r.yaml")
        self.assertIn("apiVersion: v1", str(caught.exception))

    def test_cache(self):
        run, _, _ = self.quietly(retort.cache, "r.yaml", self.run_folder, {"seed": 2})
        self.assertEqual(run.folder, self.run_folder)
        self.assertEqual(
            self.arguments(), ["cache", "r.yaml", "--output", str(self.run_folder), "seed=2"]
        )

    def test_eval(self):
        self.answer('a warning\n{"loss": 0.5}\n')
        result, out, _ = self.quietly(
            retort.eval, "model", pathlib.Path("test.jsonl"), exact_match=True, output=None,
            max_length=64, columns={"prompt": "question", "completion": "answer"},
        )
        self.assertEqual((result, out), ({"loss": 0.5}, ""))
        self.assertEqual(
            self.arguments(),
            ["eval", "--model", "model", "--data", "test.jsonl", "--exact-match", "--max-length",
             "64", "--columns", "prompt=question", "completion=answer"],
        )

    def test_ctrl_c_waits_until_the_program_has_saved(self):
        self.write_script(
            "retort",
            "#!/bin/sh\ntrap 'sleep 0.3; echo saved >saved; exit 130' INT\n"
            "echo begun\nwhile :; do sleep 0.05; done\n",
        )
        command = [sys.executable, "-c", "import retort; retort.launch('r.yaml')"]
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )
        self.assertEqual(process.stdout.readline(), "begun\n")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertEqual((self.folder / "saved").read_text(), "saved\n")

    def test_what_a_child_of_the_program_holds_open_is_not_waited_for(self):
        self.write_script("retort", "#!/bin/sh\necho '{}'\nsleep 600 & echo $! >child\n")
        with mock.patch.object(commands, "_LAST_WORDS_SECONDS", 0.2):
            self.assertEqual(retort.eval("model", "data"), {})
        os.kill(int((self.folder / "child").read_text()), signal.SIGKILL)
