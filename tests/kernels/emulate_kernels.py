"""Writes the C++ file that holds CUDA kernels for the emulator, and their table.

  emulate_kernels.py --compiler CXX --root FOLDER --out FILE.cc SOURCE.cuh...

The sources are taken as the preprocessor leaves them, so that kernels which macros write are found
too, and each in a namespace of its own: on a device they are programs of their own. Each
declaration of a shared array is followed by a call that overwrites it for a new block; one of
dynamic shared memory becomes a pointer to the emulator's.
"""
import argparse
import pathlib
import re
import subprocess
import sys

KERNEL = re.compile(r"\b__global__\s+void\s+__launch_bounds__\((\d+)[^)]*\)\s*(\w+)\s*\(")
SHARED = re.compile(r"\b__shared__\s+[^;]*?(\w+)\s*((?:\[[^;\]]*\]\s*)*);")
DYNAMIC = re.compile(r"\bextern\s+__shared__\s+([^;]*?)\b(\w+)\s*\[\s*\]\s*;")
MARKER = re.compile(r'^# (\d+) "([^"]*)".*$', re.MULTILINE)

FILE = """// Written by tests/kernels/emulate_kernels.py.
#include "tests/kernels/emulated_kernels.h"

#include "tests/kernels/dialect.h"

namespace retort::emulator {{
{text}
const KernelTable& emulated_kernels() {{
  static const KernelTable kAll{{
{rows}  }};
  return kAll;
}}

}}  // namespace retort::emulator
"""


def preprocessed(compiler, root, source):
    command = [compiler, "-std=c++20", "-E", "-x", "c++", f"-I{root}", "-"]
    include = f'#include "{source.relative_to(root)}"\n'
    # What comes from a pipe is looked for beside the working folder first, which may be another
    # checkout, or the one of which `root` is a mutated copy.
    return subprocess.run(
        command, cwd=root, input=include, stdout=subprocess.PIPE, check=True, text=True).stdout


def line_directive(match):
    """The compiler's own markers are an extension; those of its command line name no file."""
    number, file = match.groups()
    return "" if file.startswith("<") or number == "0" else f'#line {number} "{file}"'


def emulated(source, text):
    """The text for the emulator, and the kernels in it: (threads, name)."""
    kernels = KERNEL.findall(text)
    if len(kernels) != len(re.findall(r"\b__global__\b", text)):
        sys.exit(
            f"error: {source}: not each kernel begins with "
            "extern \"C\" __global__ void __launch_bounds__(MAX)")
    text = DYNAMIC.sub(
        lambda match: f"auto* const {match[2]} = static_cast<{match[1]}*>(dynamic_shared());",
        text)
    text = SHARED.sub(lambda match: f"{match[0]} begin_shared({match[1]});", text)
    text = MARKER.sub(line_directive, text)
    return f"namespace {source.stem}_source {{\nnamespace {{\n{text}\n}}\n}}\n", kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("sources", type=pathlib.Path, nargs="+")
    options = parser.parse_args()

    root = options.root.resolve()
    text, rows = "", ""
    for source in options.sources:
        source = source.resolve()
        part, kernels = emulated(source, preprocessed(options.compiler, root, source))
        text += part
        for threads, name in kernels:
            kernel = f"emulated_kernel({source.stem}_source::{name}, {threads})"
            rows += f"      {{\"{name}\",\n       {kernel}}},\n"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(FILE.format(text=text, rows=rows))


if __name__ == "__main__":
    main()
