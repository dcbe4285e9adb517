"""A real vLLM serves models of ours, and our adapter asks it.

    RETORT_BIN=build/bin/retort RETORT_VLLM_TEST=build/tests/vllm_live_test \\
        RETORT_VLLM_PYTHON=.../bin/python python3 vllm_test.py

For a model with a head of its own and for one whose head is tied: vLLM is started on it in
float32, and vllm_live_test compares what it draws and scores with our own forward, and lets it
load other weights. One more, with RETORT_TRITON_LANGUAGE (a folder with the package triton), is
asked at ids that are named for each position. 77 (skipped) without RETORT_VLLM_PYTHON. The server
has one thread; a start takes about half a minute, its first answers as long again.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"
RETORT = os.environ.get("RETORT_BIN", str(BUILD / "bin/retort"))
PROGRAM = os.environ.get("RETORT_VLLM_TEST", str(BUILD / "tests/vllm_live_test"))
PYTHON = os.environ.get("RETORT_VLLM_PYTHON")
TRITON = os.environ.get("RETORT_TRITON_LANGUAGE")  # a folder with the package
SKIPPED = 77
START_SECONDS = 400  # of which a machine with nothing else to do needs 40

# vLLM's CPU kernels know no head_dim below 32.
SIZES = "--hidden-size 64 --intermediate-size 96 --num-hidden-layers 2 --num-attention-heads 2"
SIZES += " --num-key-value-heads 1 --head-dim 32 --initializer-range 0.2 --vocab-size 416"
SERVER = "--dtype float32 --max-model-len 128 --max-logprobs 64 --served-model-name m"
SERVER += " --host 127.0.0.1 --enforce-eager --block-size 32"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

# What takes ids that are named for each position. The newer of vLLM's model runners is written in
# Triton, of which there is no compiler for CPUs on the package index; its interpreter runs it.
NAMED_SERVER = SERVER + " --enable-scale-out"
NAMED_ENVIRONMENT = ENVIRONMENT | {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",
    "PYTHONPATH": os.pathsep.join([str(HERE / "triton_interpreter"), str(TRITON)]),
}


def run(*command):
    subprocess.run([RETORT, *map(str, command)], check=True, capture_output=True, text=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """vLLM on one model, for as long as the `with` block runs. Its processes are a group, which
    ends as a whole. `named`: it takes ids that are named for each position."""

    def __init__(self, model, named=False):
        options, environment = SERVER, ENVIRONMENT
        if named:
            options, environment = NAMED_SERVER, NAMED_ENVIRONMENT
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            ["nice", "-n", "19", PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
            + ["--model", str(model), "--port", str(self.port), *options.split()],
            env={**os.environ, **environment, "PATH": self.path()},
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @staticmethod
    def path():
        return f"{pathlib.Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"

    def __enter__(self):
        try:
            self.wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_until_healthy(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError("vLLM ended:\n" + self.last_words())
            try:
                with urllib.request.urlopen(self.address + "/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"vLLM is not there after {START_SECONDS} s:\n" + self.last_words())

    def last_words(self):
        self.log.seek(0)
        return self.log.read()[-6000:]

    def stop(self):
        for number in [signal.SIGTERM, signal.SIGKILL]:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
        self.log.close()


class VllmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="retort-vllm-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        data = cls.folder / "data.jsonl"
        run("data", "arithmetic", "--count", 300, "--output", data)
        run("tokenizer", "train", "--data", data, "--vocab-size", 400, "--output", cls.tokenizer())

    @classmethod
    def tokenizer(cls):
        return cls.folder / "tokenizer"

    def model(self, family, tied, seed):
        folder = self.folder / f"{family}-{tied}-{seed}"
        run(
            *["model", "init", "--arch", family, "--tokenizer", self.tokenizer(), *SIZES.split()],
            *["--tie-word-embeddings", tied, "--seed", seed, "--output", folder],
        )
        return folder

    def compare(self, family, tied, named=False):
        served, other = (self.model(family, tied, seed) for seed in (3, 4))
        with Server(served, named) as server:
            environment = {
                **os.environ,
                "RETORT_VLLM_URL": server.address,
                "RETORT_VLLM_MODEL": str(served),
                "RETORT_VLLM_OTHER": str(other),
            }
            command = [PROGRAM]
            if named:
                environment["RETORT_VLLM_NAMED"] = "1"
                command.append("--gtest_filter=*.SaysWhatItServes:*.Scores*")
            result = subprocess.run(command, env=environment, capture_output=True, text=True)
            if result.returncode != 0:
                raise AssertionError(result.stdout + result.stderr + server.last_words())
        for line in result.stdout.splitlines():
            if line[:1].isalpha():
                print(f"{family}, tied {tied}: {line}", flush=True)

    def test_model_with_a_head(self):
        self.compare("qwen3", "false")

    def test_model_with_a_tied_head(self):
        self.compare("llama", "true")

    def test_named_ids(self):
        if not TRITON:
            self.skipTest("RETORT_TRITON_LANGUAGE names no folder with Triton")
        self.compare("qwen3", "false", named=True)


if __name__ == "__main__":
    if not PYTHON:
        print("skipped: RETORT_VLLM_PYTHON names no Python with vllm (./dev test -L engines)")
        sys.exit(SKIPPED)
    unittest.main()
