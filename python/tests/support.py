"""What the tests of the Python package share: a folder of their own, and a program that is none."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGE_FOLDER = pathlib.Path(__file__).resolve().parents[1]  # holds `retort`
ROOT = PACKAGE_FOLDER.parent


class FolderTest(unittest.TestCase):
    """A test with an empty folder, in which it stands, and with variables of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retort test "))
        self.addCleanup(shutil.rmtree, self.folder)
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        variables = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(variables)))
        for name in ("RETORT_BIN", "RETORT_TORCH_SITE", "RETORT_FROM_PYTHON"):
            os.environ.pop(name, None)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_script(self, name, text):
        path = self.write(name, text)
        path.chmod(0o755)
        return path

    def write_rows(self, name, rows):
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def make_run(self, recipe="recipe: sft\n"):
        self.write("run/recipe.resolved.yaml", recipe)
        return self.folder / "run"


def python(*arguments, stdin="", **variables):
    """A Python with the package and the current folder, and nothing that is installed."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(PACKAGE_FOLDER), os.getcwd()]),
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=environment, input=stdin, capture_output=True, text=True, timeout=60,
    )
