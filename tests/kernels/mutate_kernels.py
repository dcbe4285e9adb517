"""Breaks the kernels on purpose, one place after the other, and tells which tests see it:

    python3 tests/kernels/mutate_kernels.py --build build [--list] [--only PART,...] [--output FILE]

A mutation takes out a barrier, or lets a bound take one element more. Its kernels are compiled for
the emulator as the build does it, linked with the objects of kernels_test, and run; a test that
fails, or a program that dies, has seen it. What nobody sees is told, and the exit code is 1, unless
`mutations.txt` beside this file names it with a reason; so are entries there of which the kernels
have nothing any more. Needs a folder in which kernels_test was built; a mutation takes a core half
a minute.
"""

import argparse
import collections
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELS = ROOT / "kernels"

BARRIER = re.compile(r"__syncthreads\(\);")
# Comparisons with what a thread may not pass; those of loops over a thread's own registers and of
# warps are not among them.
BOUND = re.compile(
    r"(?<![<>=\w] )(\b[\w.+* ]+?) (<) ((?:c\.|t\.|shape\.)?(?:rows|width|packs|count|columns|"
    r"size|end|left|length|num_ids|vocab_size|heads|n|tasks)\b)"
)
SECONDS = 240
SEPARATOR = " ## "  # in mutations.txt; no line of a kernel has it


class Mutation:
    def __init__(self, path, line, what, text, code):
        self.path, self.line, self.what, self.text = path, line, what, text
        self.code = code  # of the line, as the kernel has it
        self.nth = 1  # of those in the file with the same change of the same code

    def name(self):
        return f"{self.path.name}:{self.line} {self.what}"

    def key(self):
        """What names it in mutations.txt: lines move, and the reason is one of the code."""
        return (self.path.name, str(self.nth), self.what, self.code)


def lines_of_code(text):
    """(number, line) without comments and preprocessor lines."""
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0]
        if code.strip() and not code.lstrip().startswith(("#", "*")):
            yield number, code


def places(text):
    """(line's number, what is changed there, begin and end in the line, what stands there then)."""
    for number, code in lines_of_code(text):
        for match in BARRIER.finditer(code):
            yield number, "without its barrier", match.span(), ""
        for match in BOUND.finditer(code):
            yield number, f"{match[1].strip().split('(')[-1]} <= {match[3]}", match.span(2), "<="


def mutations():
    found, counts = [], collections.Counter()
    for path in sorted(KERNELS.glob("*.cuh")):
        text = path.read_text()
        for number, what, (begin, end), new in places(text):
            lines = text.splitlines(keepends=True)
            line = lines[number - 1]
            lines[number - 1] = line[:begin] + new + line[end:]
            mutation = Mutation(path, number, what, "".join(lines), line.split("//")[0].strip())
            counts[path, what, mutation.code] += 1
            mutation.nth = counts[path, what, mutation.code]
            found.append(mutation)
    return found


def commands(build):
    """How the build compiles the table of emulated kernels, and links kernels_test."""
    text = subprocess.run(
        ["ninja", "-C", build, "-t", "commands", "kernels_test"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    compile_line = [l for l in text if "-c " in l and "emulated_kernel_table.cc" in l]
    if len(compile_line) != 1 or "kernels_test" not in text[-1]:
        sys.exit("error: this build folder does not compile emulated_kernel_table.cc by itself")
    return compile_line[0], text[-1]


def emulate(root, table):
    sources = re.search(r"_kernels\n(.*?)\)", (ROOT / "kernels/CMakeLists.txt").read_text(), re.S)
    names = re.findall(r"\w+\.cuh", sources[1])
    subprocess.run(
        [sys.executable, HERE / "emulate_kernels.py", "--compiler", "g++", "--root", root]
        + ["--out", table, *(root / "kernels" / name for name in names)],
        check=True,
    )


def run_mutated(mutation, build, compile_line, link_line, work):
    """What saw it: names of tests, or how the program ended; nothing if none did."""
    root, table, program = work / "root", work / "table.cc", work / "kernels_test"
    (root / "kernels").mkdir(parents=True, exist_ok=True)
    for path in KERNELS.glob("*.cuh"):
        (root / "kernels" / path.name).write_text(
            mutation.text if mutation and path == mutation.path else path.read_text()
        )
    emulate(root, table)
    words = shlex.split(compile_line)
    at = words.index("-o")
    words[at + 1] = str(work / "table.o")
    words[words.index("-c") + 1] = str(table)
    ended = subprocess.run(words, cwd=build, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"error: {mutation and mutation.name()} does not compile:\n{ended.stderr[-3000:]}")

    # Our table stands before the library, whose own is then not taken.
    link = re.sub(r"-o \S+", f"-o {program} {work / 'table.o'}", link_line, count=1)
    subprocess.run(link, shell=True, check=True, cwd=build, capture_output=True)
    try:
        ended = subprocess.run(
            [program], cwd=build, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return ["it hangs"]
    failed = re.findall(r"^\[  FAILED  \] (\w+\.\w+)(?: \(|$)", ended.stdout, re.M)
    return sorted(set(failed)) or ([f"exit code {ended.returncode}"] if ended.returncode else [])


def known_survivors():
    """The keys of mutations.txt."""
    known = set()
    for number, line in enumerate((HERE / "mutations.txt").read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        *key, reason = line.split(SEPARATOR)
        if len(key) != 4 or not reason:
            sys.exit(f"error: mutations.txt:{number}: expected FILE, NTH, CHANGE, CODE, REASON")
        known.add(tuple(key))
    return known


def tell_stale(known, every):
    """Names the entries that no mutation has; their number."""
    stale = sorted(known - {mutation.key() for mutation in every})
    for key in stale:
        print(f"mutations.txt names what the kernels do not have: {SEPARATOR.join(key)}")
    return len(stale)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="", help="parts of names, any of which is enough")
    parser.add_argument("--output", type=pathlib.Path, help="gets a line for each")
    options = parser.parse_args()
    parts = [p for p in options.only.split(",") if p]
    every, known = mutations(), known_survivors()
    chosen = [m for m in every if not parts or any(p in m.name() for p in parts)]
    stale = tell_stale(known, every)
    if options.list:
        print(*(m.name() for m in chosen), sep="\n")
        return 1 if stale else 0

    build = options.build.resolve()
    compile_line, link_line = commands(build)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutate_kernels-") as folder:
        # Without a mutation all tests pass, or nothing that follows says anything.
        failed = run_mutated(None, build, compile_line, link_line, pathlib.Path(folder))
        if failed:
            sys.exit(f"error: tests fail without a mutation: {', '.join(failed)}")
        for mutation in chosen:
            saw = run_mutated(mutation, build, compile_line, link_line, pathlib.Path(folder))
            line = f"{mutation.name()}: {', '.join(saw) or 'NOT SEEN'}"
            print(line, flush=True)
            if options.output:
                with open(options.output, "a") as file:
                    file.write(line + "\n")
            if saw and mutation.key() in known:
                print(f"mutations.txt says that nothing sees {mutation.name()}")
            if not saw and mutation.key() not in known:
                survivors.append(mutation.name())
    print(f"{len(chosen)} mutations, {len(survivors)} that no test sees")
    return 1 if survivors or stale else 0


if __name__ == "__main__":
    sys.exit(main())
