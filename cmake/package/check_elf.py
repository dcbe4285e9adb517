#!/usr/bin/env python3
"""check_elf.py FOLDER: whether every ELF file below it runs where a package promises to run.

Each file may need symbols of at most these versions: those of glibc 2.34 and GCC 11. It may need
libraries of glibc and GCC, of LibTorch and of CUDA's wheels, and those that the folder holds. It
may name no folder of the machine that it was made on. Prints the newest versions that are needed;
ends with 1 and names file and symbol where a file needs more.
"""
import os
import re
import subprocess
import sys

NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11,)}
SYSTEM = re.compile(
    r"lib(c|m|dl|rt|util)\.so\.\d+|libpthread\.so\.0|libstdc\+\+\.so\.6|libgcc_s\.so\.1"
    r"|ld-linux-x86-64\.so\.2"
)
LIBTORCH = re.compile(r"libtorch_cpu\.so|libtorch_cuda\.so|libc10(_cuda)?\.so|libgomp\.so\.1")
CUDA = re.compile(r"lib(cu[A-Za-z]+|nccl|nvrtc|nvshmem_host)\.so\.\d+")
# Files of the compiler that must come from the machine: two of them in a process do not agree.
FORBIDDEN = re.compile(r"lib(stdc\+\+|gcc_s)\.so")

VERSIONED = re.compile(r"\*UND\*.*?\b(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\)?\s+(\S+)$")
PRIVATE = re.compile(r"\*UND\*.*?\bGLIBC_(PRIVATE|ABI_\w+)\)?\s+(\S+)$")
REQUIRED = re.compile(r"0x[0-9a-f]+ 0x[0-9a-f]+ \d+ (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)$")


def objdump(option, path):
    command = ["objdump", option, path]
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def version(text):
    return tuple(int(part) for part in text.split(".") if part)


def elf_files(folder):
    for parent, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                continue
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


class Check:
    def __init__(self, folder):
        self.folder = folder
        self.files = list(elf_files(folder))
        self.bundled = {os.path.basename(path) for path in self.files}
        self.newest = {}
        self.wrong = []

    def report(self, path, what):
        self.wrong.append(f"{os.path.relpath(path, self.folder)}: {what}")

    def see_version(self, path, family, number, symbol):
        needed = version(number)
        if needed > self.newest.get(family, ((0,), ""))[0]:
            self.newest[family] = (needed, number)
        if needed > NEWEST[family]:
            allowed = ".".join(str(part) for part in NEWEST[family])
            self.report(path, f"{symbol} needs {family}_{number}, later than {family}_{allowed}")

    def check_symbols(self, path):
        seen = set()
        for line in objdump("-T", path):
            if match := VERSIONED.search(line):
                seen.add((match[1], match[2]))
                self.see_version(path, match[1], match[2], match[3])
            elif match := PRIVATE.search(line):
                self.report(path, f"{match[2]} needs GLIBC_{match[1]}")
        return seen

    # The versions that the loader asks for, which a file may need without a symbol of them.
    def check_dynamic_section(self, path, seen):
        for line in objdump("-p", path):
            words = line.split()
            match = REQUIRED.search(line.strip())
            if match and (match[1], match[2]) not in seen:
                self.see_version(path, match[1], match[2], "the file itself")
            if len(words) != 2:
                continue
            if words[0] == "NEEDED" and not self.is_allowed(words[1]):
                self.report(path, f"needs {words[1]}, which neither the package nor the system has")
            if words[0] in ("RPATH", "RUNPATH"):
                for folder in words[1].split(":"):
                    if not folder.startswith("$ORIGIN"):
                        self.report(path, f"names a folder of the machine it was made on: {folder}")

    def is_allowed(self, library):
        known = any(pattern.fullmatch(library) for pattern in (SYSTEM, LIBTORCH, CUDA))
        return known or library in self.bundled

    def run(self):
        for path in self.files:
            if FORBIDDEN.match(os.path.basename(path)):
                self.report(path, "is the machine's own; a package must not hold it")
            self.check_dynamic_section(path, self.check_symbols(path))


def main():
    check = Check(sys.argv[1])
    check.run()
    if not check.files:
        sys.exit(f"error: no ELF file below {sys.argv[1]}")
    newest = ", ".join(f"{family}_{number}" for family, (_, number) in sorted(check.newest.items()))
    print(f"{len(check.files)} ELF files need at most {newest}")
    if check.wrong:
        sys.exit("error: the package would not run everywhere:\n  " + "\n  ".join(check.wrong))


main()
