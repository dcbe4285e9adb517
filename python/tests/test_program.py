"""Which program is started, with what said of this Python's LibTorch."""
import os
import sys
from unittest import mock

from retort import program
from tests.support import FolderTest, python

STARTS = "import sys; from retort.program import main; sys.argv = ['retort', 'a b']; main()"


class ProgramTest(FolderTest):
    def make_torch(self, site):
        self.write(f"{site}/torch/__init__.py", "raise SystemExit('torch was imported')")
        (self.folder / site / "nvidia/cu13").mkdir(parents=True)
        return str(self.folder / site)

    def lines(self):
        return program.environment()["RETORT_FROM_PYTHON"].split("\n")

    def test_says_where_this_python_has_torch(self):
        site = self.make_torch("a site")
        other = str(self.folder / "other")
        (self.folder / "other/nvidia").mkdir(parents=True)
        with mock.patch.object(sys, "path", ["nowhere", site, other]):
            self.assertEqual(self.lines(), [sys.executable, site, site, other])
        self.assertNotIn("torch", sys.modules)

    def test_the_current_folder_does_not_count(self):
        self.make_torch(".")
        for first in ("", os.getcwd()):
            with mock.patch.object(sys, "path", [first, *sys.path]):
                self.assertNotIn(os.getcwd(), self.lines())

    def test_the_variable_names_another_program(self):
        os.environ["RETORT_BIN"] = "/elsewhere/retort"
        self.assertEqual(program.program(), "/elsewhere/retort")

    def test_a_package_without_a_program_says_so(self):
        result = python("-c", STARTS, RETORT_BIN="/never/asked")
        self.assertEqual(result.returncode, 3)
        self.assertIn("there is no program in", result.stderr)
        self.assertIn("set RETORT_BIN", result.stderr)


class CommandTest(FolderTest):
    def setUp(self):
        super().setUp()
        # A package that has a program, as a wheel has.
        for path in (program.PACKAGE + "/program.py", program.PACKAGE + "/__init__.py"):
            with open(path) as file:
                self.write(f"site/retort/{os.path.basename(path)}", file.read())

    def test_the_command_becomes_the_program(self):
        self.write_script(
            "site/retort/bin/retort", '#!/bin/sh\nprintf "%s|" "$$" "$RETORT_FROM_PYTHON" "$@"\n'
        )
        code = f"import os; print(os.getpid(), end='|', flush=True); {STARTS}"
        result = python("-c", code, PYTHONPATH=str(self.folder / "site"))
        parts = result.stdout.split("|")
        self.assertEqual(parts[0], parts[1], "the same process")
        self.assertEqual(parts[2].split("\n")[:2], [sys.executable, ""])
        self.assertEqual(parts[3:], ["a b", ""])

    def test_imports_nothing_that_it_does_not_need(self):
        self.write_script("site/retort/bin/retort", "#!/bin/sh\n")
        code = (
            "import os, sys; os.execve = lambda *_: print(*sorted(sys.modules)); " + STARTS
        )
        result = python("-c", code, PYTHONPATH=str(self.folder / "site"))
        for name in ("json", "subprocess", "pathlib", "typing", "re"):
            self.assertNotIn(name, result.stdout.split())
