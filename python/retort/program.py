"""Where the program is, and how the command `retort` of a wheel becomes it.

A wheel holds what an archive holds (docs/package.md), in the folder of this package. Its bin/retort
looks for LibTorch and takes the place of the process. It is told which Python it comes from, so
that LibTorch is the torch that this Python would import; torch itself is never imported.
"""
import os
import sys
from importlib.machinery import PathFinder

PACKAGE = os.path.dirname(os.path.abspath(__file__))


def imported_folders(name):
    """The folders that this Python would import a package from; none if it would not find it."""
    # A folder `torch` in the current folder does not count, as for the program itself.
    is_current = sys.path[:1] == [""] or sys.path[:1] == [os.getcwd()]
    spec = PathFinder.find_spec(name, sys.path[1:] if is_current else sys.path)
    return list(spec.submodule_search_locations or []) if spec else []


def environment():
    """The variables of this process, and for bin/retort where this Python has LibTorch.

    RETORT_FROM_PYTHON is this Python's path, then the site-packages folder of torch (an empty line
    if there is none), then those of the nvidia wheels; lib/find_libtorch reads it.
    """
    folders = (imported_folders("torch") or [""])[:1] + imported_folders("nvidia")
    lines = [sys.executable] + [os.path.dirname(folder) for folder in folders]
    return {**os.environ, "RETORT_FROM_PYTHON": "\n".join(lines)}


def packaged_program():
    program = os.path.join(PACKAGE, "bin", "retort")
    if os.path.exists(program):
        return program
    raise FileNotFoundError(
        f"there is no program in {PACKAGE}: install Retort's wheel (./dev package --wheel makes "
        "it), or set RETORT_BIN to a program that is built"
    )


def program():
    """The path of the program that the functions of this module start."""
    return os.environ.get("RETORT_BIN") or packaged_program()


def recipes_folder():
    """The folder of the recipes that come with the wheel."""
    return os.path.join(PACKAGE, "share", "recipes")


def main():
    """The command `retort`. RETORT_BIN does not count here, as it may name this very command."""
    try:
        path = packaged_program()
        os.execve(path, [path, *sys.argv[1:]], environment())
    except OSError as error:
        print(f"retort: error: {error}", file=sys.stderr)
        sys.exit(3)
