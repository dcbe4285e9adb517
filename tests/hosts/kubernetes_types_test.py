"""Manifests of runs against Kubernetes' own types, strictly: those of its client for Python
(manifests.py), and with `./dev test -L hosts` those of its Go packages, which an API server has."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import manifests
import skip

ROOT = pathlib.Path(os.environ["RETORT_SOURCE_DIR"])
PROGRAM = pathlib.Path(os.environ["RETORT_BIN"])
GOLDENS = ROOT / "tests/launch/goldens"
GO_SOURCE = ROOT / "tests/hosts/kubernetes_types"
KINDS = ["Secret", "ConfigMap", "Service", "Job", "Job", "Job", "Job"]
# What an API server refuses, and how our own would look with it.
MISTAKES = {
    "unknown field": ("backoffLimit: 0", "backofLimit: 0"),
    "text for a number": ("completions: 4", "completions: four"),
    "a number for text": ("restartPolicy: Never", "restartPolicy: 1"),
    "a block for a list": ("      containers:\n        - name: retort\n",
                           "      containers:\n          name: retort\n"),
    "a switch as text": ("immutable: true", 'immutable: "yes"'),
}


class TypesTest(unittest.TestCase):
    def text(self, *arguments):
        return manifests.printed(PROGRAM, GOLDENS / "kubernetes.yaml", *arguments)

    def errors(self, text):
        return [error for tree in manifests.read(text) for error in manifests.errors_of(tree)]

    def test_the_program_prints_what_the_types_have(self):
        for arguments in ([], ["--resume"], ["--overwrite", "launch.kubernetes.pod={}",
                                             "launch.stop_timeout=25s"]):
            text = self.text(*arguments)
            self.assertEqual([tree["kind"] for tree in manifests.read(text)], KINDS)
            self.assertEqual(self.errors(text), [])

    def test_the_golden_file_is_as_good(self):
        self.assertEqual(self.errors((GOLDENS / "kubernetes_manifests.yaml").read_text()), [])

    def test_each_mistake_is_seen(self):
        text = self.text()
        for what, (right, wrong) in MISTAKES.items():
            self.assertIn(right, text, what)
            self.assertNotEqual(self.errors(text.replace(right, wrong)), [], what)
        missing = self.errors(text.replace("  template:\n", "  templates:\n", 1))
        self.assertIn("Job.spec.template: Field required", missing)
        self.assertIn("Job.spec.templates: Extra inputs are not permitted", missing)

    def test_names_are_those_of_dns(self):
        label = r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"
        jobs = set()
        text = self.text("output_dir=/runs/" + "7th Run_with-a-name " * 3 + "x")
        for tree in manifests.read(text):
            self.assertRegex(tree["metadata"]["name"], label)
            if tree["kind"] != "Job":
                continue
            jobs.add(tree["metadata"]["name"])
            last = tree["spec"]["completions"] - 1
            self.assertRegex(f"{tree['metadata']['name']}-{last}", label)
            self.assertRegex(tree["spec"]["template"]["spec"]["subdomain"], label)
        self.assertEqual(len(jobs), 4)


class GoTypesTest(unittest.TestCase):
    """k8s.io/api as it is, decoded with serializer.EnableStrict."""

    @classmethod
    def setUpClass(cls):
        if not os.environ.get("RETORT_KUBERNETES_GO"):
            raise unittest.SkipTest("Go's types are checked by ./dev test -L hosts, where Go is")
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.checker = f"{folder}/check"
        subprocess.run(["go", "build", "-mod=readonly", "-o", cls.checker, "."], cwd=GO_SOURCE,
                       check=True)

    def check(self, text):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            done = subprocess.run([self.checker, file.name], capture_output=True, text=True)
        return done.stdout

    def text(self, *arguments):
        return manifests.printed(PROGRAM, GOLDENS / "kubernetes.yaml", *arguments)

    def test_the_program_prints_what_the_types_have(self):
        want = "".join(f"ok {kind}\n" for kind in KINDS)
        self.assertEqual(self.check(self.text()), want)
        self.assertEqual(self.check((GOLDENS / "kubernetes_manifests.yaml").read_text()), want)

    def test_each_mistake_is_seen(self):
        text = self.text()
        for what, (right, wrong) in MISTAKES.items():
            self.assertIn("bad: ", self.check(text.replace(right, wrong)), what)


if __name__ == "__main__":
    manifests.run_with_types()
    skip.main(manifests.why_not, hosts_needed=False)
