"""cmake/package/make_wheel.py: what an installer reads."""
import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile

from tests.support import ROOT, FolderTest

TAG = "py3-none-manylinux_2_34_x86_64"


class MakeWheelTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("package/program.py", "import sys\n")
        self.write("package/__pycache__/program.pyc", "of a Python")
        self.write_script("package/bin/retort", "#!/bin/sh\n")
        self.write_script("package/lib/find_libtorch", "#!/bin/sh\nwanted=2.11.0\n")
        self.write("licences/README", "ours\n")
        self.write("licences/a library/LICENSE", "theirs\n")

    def make(self, version="0.1.0", epoch=1700000000):
        path = self.folder / "made.whl"
        subprocess.run(
            [sys.executable, ROOT / "cmake/package/make_wheel.py", "--package", "package",
             "--licences", "licences", "--version", version, "--tag", TAG, "--epoch", str(epoch),
             "--output", path],
            check=True,
        )
        return path

    def read(self, name, **options):
        with zipfile.ZipFile(self.make(**options)) as wheel:
            return wheel.read(name).decode()

    def test_the_same_files_make_the_same_bytes(self):
        first = self.make().read_bytes()
        for path in self.folder.rglob("*"):
            os.utime(path, (1, 1))
        self.assertEqual(self.make().read_bytes(), first)
        self.assertNotEqual(self.make(epoch=1700000002).read_bytes(), first)

    def test_record_lists_every_file_with_its_hash(self):
        with zipfile.ZipFile(self.make()) as wheel:
            contents = {name: wheel.read(name) for name in wheel.namelist()}
        record = "retort-0.1.0.dist-info/RECORD"
        self.assertEqual(list(contents)[-1], record)
        inside = [name for name in contents if name.startswith("retort/")]
        self.assertEqual(inside, sorted(inside), "in no file system's order")
        rows = list(csv.reader(io.StringIO(contents[record].decode())))
        self.assertEqual([row[0] for row in rows], list(contents))
        self.assertEqual(rows[-1], [record, "", ""])
        for name, digest, size in rows[:-1]:
            found = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest())
            self.assertEqual(digest, "sha256=" + found.decode().rstrip("="))
            self.assertEqual(int(size), len(contents[name]))

    def test_programs_can_be_executed(self):
        with zipfile.ZipFile(self.make()) as wheel:
            modes = {info.filename: info.external_attr >> 16 for info in wheel.infolist()}
        self.assertEqual(modes["retort/bin/retort"], 0o100755)
        self.assertEqual(modes["retort/program.py"], 0o100644)
        self.assertNotIn("retort/__pycache__/program.pyc", modes)

    def test_metadata(self):
        text = self.read("retort-0.1.0+cpu.dist-info/METADATA", version="0.1.0+cpu")
        for line in (
            "Version: 0.1.0+cpu",
            "Requires-Dist: torch==2.11.0",
            'Requires-Dist: wandb; extra == "wandb"',
            "License-File: a library/LICENSE",
        ):
            self.assertIn(f"\n{line}\n", text)
        self.assertNotIn("\n\n\n", text)
        self.assertIn(f"\nTag: {TAG}\n", self.read("retort-0.1.0.dist-info/WHEEL"))
        self.assertIn("retort = retort.program:main", self.read(
            "retort-0.1.0.dist-info/entry_points.txt"
        ))
