"""What the tests of runs on whole hosts (hosts.py) share: recipes with a student of two ranks, and
a test case that starts the program on a host."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import hosts

ROOT = pathlib.Path(os.environ["RETORT_SOURCE_DIR"])
PROGRAM = pathlib.Path(os.environ["RETORT_BIN"])
sys.path.insert(0, str(ROOT / "tests/faults"))
import launched  # noqa: E402
import scenarios  # noqa: E402

LIMIT = 240  # seconds; bounds a hang
result_of = launched.result_of


def distill(steps=12):
    roles = {"teacher": {"model": "teacher"}}
    text = scenarios.recipe("distill", roles, scenarios.GOLDENS / "rows.jsonl", steps,
                            "distill: {teachers: [{role: teacher}]}\n", batch=2)
    return trained_by(2, text)


def dpo(data, steps=12):
    return trained_by(2, scenarios.dpo()(data).replace("max_steps: 60", f"max_steps: {steps}"))


def grpo(data, steps=12, reference=False):
    text = scenarios.grpo(more="beta: 0.05" if reference else "")(data)
    if reference:
        text = text.replace("data:\n", scenarios.role("reference", "qwen3") + "data:\n", 1)
    return trained_by(2, text.replace("max_steps: 120", f"max_steps: {steps}"))


def trained_by(ranks, text):
    """The student of a recipe with that many replicas."""
    return text.replace("{dp: 1, tp: 1,", f"{{dp: {ranks}, tp: 1,", 1)


def served_by_two(text):
    """The last role of a recipe with two replicas."""
    head, tail = text.rsplit("world: {dp: 1,", 1)
    return head + "world: {dp: 2," + tail


def on_hosts(*slots):
    """The block that starts a recipe on h1, h2 and so on, with that many slots each."""
    places = ", ".join(f"{{host: h{i + 1}, slots: {n}}}" for i, n in enumerate(slots))
    ssh = f"ssh: {{identity_file: {hosts.IDENTITY}, program: {PROGRAM}}}"
    return f"launch: {{backend: ssh, hosts: [{places}], {ssh}}}\n"


def libraries():
    """The folders that the program's libraries come from."""
    lines = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True).stdout.splitlines()
    files = [line.split("=> ")[1].split(" (")[0] for line in lines if "=> /" in line]
    return {str(pathlib.Path(os.path.abspath(file)).parent) for file in files}


def steps(run):
    """How many a run's folder has lines of."""
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.folder / "prompts.jsonl", "w") as file:
            for i in range(10):
                row = {"prompt": scenarios.words(i + 1, 1 + i % 6), "completion": "w1"}
                file.write(json.dumps(row) + "\n")

    def network(self, names=("launcher", "h1", "h2"), family=4, keep=(), patience=20):
        network = hosts.Network(
            list(names), family=family, patience=patience,
            keep=[ROOT, PROGRAM.parent, self.folder, *libraries(), *keep])
        self.enterContext(network)
        return network

    def launch(self, host, name, text, *settings):
        return self.start(host, "launch", name, text, *settings)

    def start(self, host, command, name, text, *settings):
        """Starts a command on a recipe of its own folder; the run's folder is in `.run`."""
        file = self.folder / f"{name}.yaml"
        run = self.folder / name
        file.write_text(text + f"output_dir: {run}\n")
        process = hosts.Process(host, [PROGRAM, command, file, *settings], f"{run}.{command}.out")
        process.run = run
        return process

    def finish(self, process, code=0):
        self.assertEqual(process.wait(LIMIT), code, process.text())

    def expect_nothing_left(self, network, gone=()):
        for host in network.hosts:
            if host not in gone:
                try:
                    hosts.wait_until(lambda: not host.leftovers(), host.name, 60)
                except TimeoutError:
                    self.fail(f"left on {host.name}: {host.leftovers()}")

    def steps(self, process):
        return steps(process.run)

    def places(self, process):
        """{process: host}, as a run says it."""
        status = json.loads((process.run / "status.json").read_text())
        return {f"{p['role']}/{p['rank']}": p["host"] for p in status["processes"]}

    def wait_for_steps(self, process, count):
        hosts.wait_until(lambda: self.steps(process) >= count or not process.running(),
                         f"step {count}", LIMIT)
        self.assertTrue(process.running(), process.text())

    def one_host(self, host, name, text):
        """What the same layout gives on one host."""
        alone = self.launch(host, name, text)
        self.finish(alone)
        return launched.result_of(alone.run)
