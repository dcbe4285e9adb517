"""Renders random templates by Jinja2 and by this program, and says how many texts differ.

Usage: fuzz_jinja.py TEST_PROGRAM [templates] [seed]. TEST_PROGRAM is text_test of a build; 2,000
templates, and a seed of the clock, unless others are given. Ends with 1 where a text is another
than Jinja2's, or where a template is refused here without a name for what is not supported. Needs
what make_jinja_goldens.py needs.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

MAKER = pathlib.Path(__file__).parent / "make_jinja_goldens.py"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    count = sys.argv[2] if len(sys.argv) > 2 else "2000"
    seed = sys.argv[3] if len(sys.argv) > 3 else str(int(time.time()))
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.json"
        subprocess.run([sys.executable, MAKER, count, seed, rows], check=True)
        environment = dict(os.environ, RETORT_JINJA_ROWS=str(rows))
        command = [sys.argv[1], "--gtest_filter=Jinja.RendersAsJinja2"]
        done = subprocess.run(command, env=environment)
    print(f"seed {seed}: {'as Jinja2' if done.returncode == 0 else 'differences, see above'}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
