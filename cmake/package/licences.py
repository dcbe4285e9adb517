#!/usr/bin/env python3
"""licences.py --build DIR --output DIR [--cuda] [--tests] [--libtorch]

Collects the licences of what a package consists of: ours, those of the libraries that are linked
in, of the headers that are compiled in, of the Rust crates, of LibTorch and of CUDA's wheels.
Fails where one is not found, or where the program links an archive that is not in the table.
"""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# name: (package of the distribution, its archives: none for headers alone)
LIBRARIES = {
    "yaml-cpp": ("libyaml-cpp-dev", ["libyaml-cpp.a"]),
    "openssl": ("libssl-dev", ["libssl.a", "libcrypto.a"]),
    "zlib": ("zlib1g-dev", ["libz.a"]),
    "zstd": ("libzstd-dev", ["libzstd.a"]),
    "xxhash": ("libxxhash-dev", ["libxxhash.a"]),
    "pcre2": ("libpcre2-dev", ["libpcre2-8.a"]),
    "boost": ("libboost1.81-dev", []),
    "cereal": ("libcereal-dev", []),
    "cli11": ("libcli11-dev", []),
    "gloo": ("libgloo-dev", []),
    "nlohmann-json": ("nlohmann-json3-dev", []),
}
TEST_LIBRARIES = {"googletest": ("libgtest-dev", ["libgtest.a"])}
LICENCE_NAMES = ("LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


class Missing(Exception):
    pass


def cache_variables(build):
    variables = {}
    with open(os.path.join(build, "CMakeCache.txt")) as file:
        for line in file:
            if not line.startswith(("#", "/")) and ":" in line and "=" in line:
                name, value = line.rstrip("\n").split("=", 1)
                variables[name.split(":")[0]] = value
    return variables


def copy(files, folder):
    os.makedirs(folder, exist_ok=True)
    for file in files:
        shutil.copyfile(file, os.path.join(folder, os.path.basename(file)))


def licence_files(folder):
    if not os.path.isdir(folder):
        return []
    found = [name for name in os.listdir(folder) if name.upper().startswith(LICENCE_NAMES)]
    paths = (os.path.join(folder, name) for name in sorted(found))
    return [path for path in paths if os.path.isfile(path)]


def copy_distribution(libraries, output):
    for name, (package, _) in libraries.items():
        path = f"/usr/share/doc/{package}/copyright"
        if not os.path.exists(path):
            raise Missing(f"{name}: there is no {path} (package {package})")
        copy([path], os.path.join(output, name))


def check_archives(build, libraries, targets):
    """Every archive outside the build folder that a target links has its line in the table."""
    known = {archive for _, archives in libraries.values() for archive in archives}
    for target in targets:
        commands = subprocess.run(
            ["ninja", "-C", build, "-t", "commands", target],
            check=True, capture_output=True, text=True,
        ).stdout.splitlines()
        linked = {word for word in commands[-1].split() if word.endswith(".a") and word[0] == "/"}
        for archive in sorted(linked):
            outside = not os.path.abspath(archive).startswith(os.path.abspath(build) + os.sep)
            if outside and os.path.basename(archive) not in known:
                raise Missing(f"{target} links {archive}: name it in cmake/package/licences.py")


def crates(cargo):
    """What is linked in: no build script's or procedural macro's crate, no other platform's."""
    metadata = json.loads(subprocess.run(
        [cargo, "metadata", "--locked", "--format-version", "1",
         "--filter-platform", "x86_64-unknown-linux-gnu",
         "--manifest-path", os.path.join(ROOT, "models/text/rust/Cargo.toml")],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    reached, waiting = set(), [root]
    while waiting:
        crate = waiting.pop()
        kinds = {kind for target in packages[crate]["targets"] for kind in target["kind"]}
        if crate in reached or "proc-macro" in kinds:
            continue
        reached.add(crate)
        for edge in nodes[crate]["deps"]:
            if any(kind["kind"] is None for kind in edge["dep_kinds"]):
                waiting.append(edge["pkg"])
    return sorted((packages[crate] for crate in reached - {root}), key=lambda p: p["name"])


def copy_crates(cargo, output):
    lines = []
    for package in crates(cargo):
        name = f"{package['name']}-{package['version']}"
        folder = os.path.dirname(package["manifest_path"])
        files = licence_files(folder)
        if not files and package["license"] == "Apache-2.0":
            files = [os.path.join(ROOT, "LICENSE")]  # the same text, which flatbuffers leaves out
        if not files:
            raise Missing(f"crate {name} ({package['license']}): no file with its licence")
        copy(files, os.path.join(output, name))
        # onig_sys compiles a library of C into itself.
        for inner in sorted(glob.glob(os.path.join(folder, "*", "COPYING"))):
            copy([inner], os.path.join(output, name, os.path.basename(os.path.dirname(inner))))
        lines.append(f"{name}: {package['license']}")
    return lines


def copy_rust_library(cargo, output):
    """Rust's own library, of a toolchain of rustup or of Debian's package."""
    rustc = os.path.join(os.path.dirname(cargo), "rustc")
    sysroot = subprocess.run(
        [rustc, "--print", "sysroot"], check=True, capture_output=True, text=True
    ).stdout.strip()
    files = licence_files(os.path.join(sysroot, "share/doc/rust"))
    files = [file for file in files if "library" in os.path.basename(file)] or files
    if not files:
        files = sorted(glob.glob("/usr/share/doc/libstd-rust*dev/copyright"))[:1]
    if not files:
        raise Missing(f"Rust's library: no licence in {sysroot}/share/doc/rust")
    copy(files, output)


def copy_wheels(site, pattern, output):
    found = sorted(glob.glob(os.path.join(site, pattern + ".dist-info")))
    if not found:
        raise Missing(f"no wheel {pattern} in {site}")
    for folder in found:
        files = licence_files(os.path.join(folder, "licenses")) or licence_files(folder)
        if not files:
            raise Missing(f"{folder} has no licence")
        copy(files, os.path.join(output, os.path.basename(folder).removesuffix(".dist-info")))


def write_contents(output, crate_lines, bundled):
    text = """\
What this package consists of besides Retort, whose licence is retort/LICENSE: Apache-2.0,
also the text that files here refer to as /usr/share/common-licenses/Apache-2.0.

Each folder is named after a library and holds its licence. Linked in: yaml-cpp, OpenSSL, zlib,
zstd, xxHash, PCRE2, the Rust crates and Rust's own library. Compiled in as headers: Boost, cereal,
CLI11, gloo, nlohmann/json, and those of LibTorch."""
    text += "\nBundled as files: " + bundled + ".\n" if bundled else "\n"
    text += "\nThe Rust crates:\n" + "".join(f"  {line}\n" for line in crate_lines)
    with open(os.path.join(output, "README"), "w") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--output", required=True)
    for flag in ("--cuda", "--tests", "--libtorch"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    cache = cache_variables(given.build)
    libraries = dict(LIBRARIES)
    if given.tests:
        libraries.update(TEST_LIBRARIES)
    check_archives(given.build, libraries, ["retort"] + ["package_tests"] * given.tests)

    copy([os.path.join(ROOT, "LICENSE")], os.path.join(given.output, "retort"))
    copy_distribution(libraries, given.output)
    lines = copy_crates(cache["RETORT_CARGO"], os.path.join(given.output, "rust"))
    copy_rust_library(cache["RETORT_CARGO"], os.path.join(given.output, "rust/library"))
    copy_wheels(cache["RETORT_TORCH_SITE"], "torch-*", given.output)
    if given.cuda:
        copy_wheels(cache["RETORT_CUDA_SITE"], "nvidia_*", given.output)
    if given.libtorch:
        copy_wheels(cache["RETORT_TORCH_SITE"], "nvidia_*", given.output)
    bundled = "LibTorch, and of CUDA libcudart and libcupti" if given.libtorch else ""
    write_contents(given.output, lines, bundled)


try:
    main()
except Missing as missing:
    sys.exit(f"error: licences: {missing}")
