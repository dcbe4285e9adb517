"""Where the package is that is measured."""

import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent  # what python3 starts
PACKAGE = pathlib.Path(os.environ.get("RETORT_PACKAGE", HERE.parent.parent))
TESTS = PACKAGE / "tests"


def program(name, *arguments):
    return [TESTS / "run", name, *arguments]
