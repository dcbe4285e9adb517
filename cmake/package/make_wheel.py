#!/usr/bin/env python3
"""make_wheel.py --package DIR --licences DIR --version V --tag TAG --epoch SECONDS --output FILE

Packs a folder, the Python package `retort` with the program in it, as a wheel. The same files make
the same bytes. What a wheel is:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""
import argparse
import base64
import hashlib
import os
import re
import time
import zipfile

# What torch brings along needs no extra.
EXTRAS = {"mlflow": "mlflow", "pandas": "pandas>=2", "wandb": "wandb"}
FIRST_YEAR = 315532800  # 1980: no file of a zip archive is older

METADATA = """\
Metadata-Version: 2.4
Name: retort
Version: {version}
Summary: Trains language models against models that run in other processes
License: Apache-2.0; libraries that are linked in have licences of their own, which the wheel holds
{licence_files}
Classifier: Environment :: Console
Classifier: Intended Audience :: Science/Research
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
{extras}
Description-Content-Type: text/plain

Retort trains a student language model against models that run in other processes: teachers, a
reference, a generator that draws answers with the student's weights. It is a program of its own,
`retort`, which uses the LibTorch in torch's wheel; the module `retort` starts it, reads its runs,
makes rewards of Python functions and feeds wandb and MLflow.
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: retort
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """\
[console_scripts]
retort = retort.program:main
"""


def files_below(folder):
    """Their paths from the folder, in an order that no file system decides."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return sorted(found)


class Wheel:
    """A wheel that is being written. RECORD, its last file, lists all others with their hashes."""

    def __init__(self, path, epoch):
        self._archive = zipfile.ZipFile(path, "w")
        self._time = time.gmtime(max(epoch, FIRST_YEAR))[:6]
        self._record = []

    def add(self, name, content, executable=False):
        info = zipfile.ZipInfo(name, self._time)
        info.create_system = 3  # Unix, whose permissions follow
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        self._archive.writestr(info, content, zipfile.ZIP_DEFLATED, compresslevel=9)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(content)}\n")

    def add_folder(self, folder, name):
        for path in files_below(folder):
            source = os.path.join(folder, path)
            with open(source, "rb") as file:
                self.add(f"{name}/{path}", file.read(), os.access(source, os.X_OK))

    def close(self, dist_info):
        record = f"{dist_info}/RECORD"
        self.add(record, "".join([*self._record, f"{record},,\n"]).encode())
        self._archive.close()


def torch_version(package):
    """The one that the program looks for."""
    with open(os.path.join(package, "lib", "find_libtorch")) as file:
        return re.search(r"^wanted=(\S+)$", file.read(), re.MULTILINE)[1]


def metadata(given):
    extras = "\n".join(
        f'Provides-Extra: {name}\nRequires-Dist: {wanted}; extra == "{name}"'
        for name, wanted in EXTRAS.items()
    )
    licences = "\n".join(f"License-File: {path}" for path in files_below(given.licences))
    return METADATA.format(
        version=given.version,
        torch=torch_version(given.package),
        extras=extras,
        licence_files=licences,
    )


def main():
    parser = argparse.ArgumentParser()
    for option in ("--package", "--licences", "--version", "--tag", "--output"):
        parser.add_argument(option, required=True)
    parser.add_argument("--epoch", type=int, default=0)
    given = parser.parse_args()

    dist_info = f"retort-{given.version}.dist-info"
    wheel = Wheel(given.output, given.epoch)
    wheel.add_folder(given.package, "retort")
    wheel.add_folder(given.licences, f"{dist_info}/licenses")
    wheel.add(f"{dist_info}/METADATA", metadata(given).encode())
    wheel.add(f"{dist_info}/WHEEL", WHEEL.format(tag=given.tag).encode())
    wheel.add(f"{dist_info}/entry_points.txt", ENTRY_POINTS.encode())
    wheel.close(dist_info)


main()
