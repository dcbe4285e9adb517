"""Compiles CUDA kernels with NVRTC, which needs no driver, device or headers of a toolkit.

  compile_kernels.py --nvrtc FOLDER --root FOLDER --out FOLDER [--cache FOLDER] SOURCE.cuh...

Writes SASS of each source for every card in SASS, PTX in PTX for later ones, and kernel_images.cc,
which holds them all (kernels/detail/kernel_images.h). A kernel that spills registers, or keeps
anything else of a thread in memory, fails the build. An image whose source, or what that includes,
is as it was when the image was made is kept; --cache keeps it for other build folders too.
"""
import argparse
import concurrent.futures
import ctypes
import hashlib
import json
import os
import pathlib
import re
import sys

SASS = (80, 90, 100, 120)
PTX = (90,)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class Nvrtc:
    """The functions of libnvrtc that are needed; each raises an error that says what failed."""

    def __init__(self, folder):
        # The builtins are found beside it only by their full name.
        for builtins in sorted(folder.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(sorted(folder.glob("libnvrtc.so.*"))[0]))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {self.library.nvrtcGetErrorString(status).decode()}")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, source, root, architecture):
        """The image and what the compiler says: "sm_90" gives SASS, "compute_90" PTX."""
        options = [
            f"--gpu-architecture={architecture}",
            "--std=c++20",
            f"--include-path={root}",
        ]
        if architecture.startswith("sm_"):
            options.append("--ptxas-options=-v")
        program = ctypes.c_void_p()
        code = source.read_bytes()
        name = str(source.relative_to(root)).encode()
        self.call("nvrtcCreateProgram", ctypes.byref(program), code, name, 0, None, None)
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = self.library.nvrtcCompileProgram(program, len(options), encoded)
        log = self.text(program, "ProgramLog").rstrip(b"\0\n").decode()
        if status != 0:
            raise RuntimeError(f"{name.decode()} does not compile for {architecture}:\n{log}")
        image = self.text(program, "CUBIN" if architecture.startswith("sm_") else "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return image, log


def read_log(log):
    """The names of the kernels, and lines on those that keep something in memory."""
    entries, problems = [], []
    for line in log.splitlines():
        if match := ENTRY.search(line):
            entries.append(match[1])
        if (match := MEMORY.search(line)) and match.groups() != ("0", "0", "0"):
            problems.append(f"{entries[-1] if entries else '?'}: {line.strip()}")
    return entries, problems


def key_of(root, source, architecture, nvrtc):
    """What an image is made of: the source, what it includes, this program, the compiler."""
    seen, waiting = [], [source]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.append(file)
        waiting += [root / name for name in INCLUDE.findall(file.read_text())]
    digest = hashlib.sha256(f"{architecture} {nvrtc.version()}".encode())
    for file in [pathlib.Path(__file__), *sorted(seen)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def write_whole(path, data):
    """Several builds may write one file of the cache at a time."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)


def take_cached(cache, key):
    """The image of this key and its record, where an earlier build has left both."""
    if cache is None or not (cache / f"{key}.json").exists():
        return None
    return (cache / key).read_bytes(), (cache / f"{key}.json").read_bytes()


def compile_one(folder, root, out, cache, source, architecture):
    """In a process of its own. The names of the kernels in the image, which is written to `out`."""
    image_file = out / f"{source.stem}.{architecture}"
    record_file = out / f"{source.stem}.{architecture}.json"
    nvrtc = Nvrtc(folder)
    key = key_of(root, source, architecture, nvrtc)
    if record_file.exists() and image_file.exists():
        record = json.loads(record_file.read_text())
        if record["key"] == key:
            return record["entries"]

    if cached := take_cached(cache, key):
        record_file.unlink(missing_ok=True)
        image_file.write_bytes(cached[0])
        record_file.write_bytes(cached[1])
        return json.loads(cached[1])["entries"]

    image, log = nvrtc.compile(source, root, architecture)
    entries, problems = read_log(log)
    if problems:
        raise RuntimeError(f"{source} for {architecture}: " + "\n  ".join(problems))
    if architecture.startswith("sm_") and not entries:
        raise RuntimeError(f"{source} has no kernel: extern \"C\" __global__ is missing")
    record_file.unlink(missing_ok=True)
    image_file.write_bytes(image)
    record = json.dumps({"key": key, "entries": entries}).encode()
    record_file.write_bytes(record)
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        write_whole(cache / key, image)
        write_whole(cache / f"{key}.json", record)
    return entries


HEAD = """// Written by cmake/compile_kernels.py.
#include "kernels/detail/kernel_images.h"

#include <array>

"""
# The digest tells ccache, which does not look into the image, that it is another one.
INCBIN = """asm("/* {digest} */ .pushsection .rodata.retort_kernels,\\"a\\",@progbits\\n"
    ".balign 64\\n.globl {symbol}\\n.hidden {symbol}\\n{symbol}:\\n"
    ".incbin \\"{path}\\"\\n.popsection\\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char {symbol}[];
"""


def write_images(out, root, sources, entries):
    """The C++ file; the assembler puts the images into it."""
    text, rows = HEAD, []
    architectures = [("sm", a) for a in SASS] + [("compute", a) for a in PTX]
    for source in sources:
        images = []
        for kind, number in architectures:
            path = out / f"{source.stem}.{kind}_{number}"
            symbol = f"retort_image_{source.stem}_{kind}_{number}"
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            text += INCBIN.format(symbol=symbol, path=path, digest=digest)
            is_ptx = "true" if kind == "compute" else "false"
            images.append(f"    {{{number}, {is_ptx}, {symbol}, {path.stat().st_size}}},\n")
        names = "".join(f"    \"{name}\",\n" for name in entries[source])
        rows.append((source, len(entries[source]), names, images))

    text += "\nnamespace retort::kernels::detail {\nnamespace {\n"
    for source, count, names, images in rows:
        text += f"\nconstexpr std::array<const char*, {count}> k_{source.stem}_entries{{\n"
        text += names + "};\n"
        text += f"const std::array<KernelImage, {len(images)}> k_{source.stem}_images{{{{\n"
        text += "".join(images) + "}};\n"
    text += f"\nconst std::array<KernelFile, {len(rows)}> kFiles{{{{\n"
    for source, _, _, _ in rows:
        name = source.relative_to(root)
        text += f"    {{\"{name}\", k_{source.stem}_entries, k_{source.stem}_images}},\n"
    text += "}};\n\n}  // namespace\n\n"
    text += "std::span<const KernelFile> kernel_files() { return kFiles; }\n\n"
    text += "}  // namespace retort::kernels::detail\n"
    (out / "kernel_images.cc").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvrtc", type=pathlib.Path, required=True, help="folder of libnvrtc.so")
    parser.add_argument("--root", type=pathlib.Path, required=True, help="of the includes")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, help="of images, for all build folders")
    parser.add_argument("sources", type=pathlib.Path, nargs="+")
    options = parser.parse_args()

    root, out = options.root.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    sources = [source.resolve() for source in options.sources]
    architectures = [f"sm_{a}" for a in SASS] + [f"compute_{a}" for a in PTX]
    entries, failures = {}, []
    # Ninja has jobs of its own beside these.
    with concurrent.futures.ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), 4)) as pool:
        jobs = {
            (source, architecture): pool.submit(
                compile_one, options.nvrtc, root, out, options.cache, source, architecture)
            for source in sources
            for architecture in architectures
        }
        for (source, architecture), job in jobs.items():
            try:
                found = job.result()
            except RuntimeError as error:
                failures.append(str(error))
                continue
            if architecture.startswith("sm_") and entries.setdefault(source, found) != found:
                failures.append(f"{source} changed while it was compiled; build again")

    names = [name for found in entries.values() for name in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        failures.append(f"two kernels have the name {name}")
    if failures:
        sys.exit("\n".join(["error: kernels"] + failures))
    write_images(out, root, sources, entries)


if __name__ == "__main__":
    main()
