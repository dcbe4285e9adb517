"""The steps that run test programs, one of them under memcheck."""

import os
import subprocess
import time

from gtest_log import TestLog
from package import PACKAGE, TESTS, program
from processes import Child, Command, lines_of
from results import record


def gtest(name, each, arguments=(), wrapper=None):
    """Runs a test program; a test is ended after `each` seconds, and the others go on."""
    log, start, filter_given = TestLog(), time.monotonic(), list(arguments)
    rc, tries = None, 0
    while Child.left() > 3 and tries < 6:
        tries += 1
        argv = wrapper(name) if wrapper else program(name)
        positive = filter_given[0] if filter_given else "*"
        if log.done():
            positive += (
                ("" if "-" in positive else "-")
                + (":" if "-" in positive else "")
                + ":".join(log.done())
            )
        argv = [*argv, f"--gtest_filter={positive}"]
        print("$", *argv, flush=True)
        env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = Command(argv, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ended_here = False
        for line in lines_of(command, time.monotonic() + Child.left() - 2):
            if line is not None:
                print(line, flush=True)
                log.line(line)
            if log.current and time.monotonic() - log.since > each:
                ended_here = True
                break
        rc = command.process.poll()
        command.kill()
        if log.current:
            if ended_here:
                why = f"ended by on_device after {each} s, a test's limit"
            elif rc is None:
                why = "ended by on_device: the step had no time left"
            else:
                why = f"its program died ({rc})"
            log.broken_off(why)  # go on with the others
            continue
        if rc is None and not ended_here:
            rc = "no time left"
        break
    shown = f"{len(log.passed)} passed, {len(log.failed)} failed, {len(log.skipped)} skipped"
    if log.failed:
        shown += ": " + " ".join(log.failed)
    if log.memory_errors is not None:
        shown += f"; {log.memory_errors} memory errors"
    record(
        name,
        shown,
        seconds=round(time.monotonic() - start, 1),
        passed=log.passed,
        failed=log.failed,
        skipped=log.skipped,
        rc=rc,
    )
    return rc == 0 and not log.failed and bool(log.passed)


RANKS = ("gpu_world_test", "gpu_layouts_test")
RUNS = ("gpu_run_test",)


def unit_tests():
    names = sorted(p.name for p in TESTS.glob("gpu_*_test"))
    return [n for n in names if n not in RANKS + RUNS]


def units():
    return all([gtest(name, 40) for name in unit_tests()])


MEMCHECK = {  # tests that take seconds under it
    "gpu_decoder_test": "*",
    "gpu_optimizer_test": "*-*AShardedOptimizer*",
    "gpu_rpc_test": "*InsideOneProcess*",
    "gpu_kernels_test": "*",
    "gpu_losses_test": "GpuLosses.CrossEntropy*:GpuTopK.*",
}


def memcheck():
    libraries = subprocess.run(
        [PACKAGE / "lib/find_libtorch", PACKAGE], check=True, capture_output=True, text=True
    ).stdout.strip()
    os.environ.update(
        LD_LIBRARY_PATH=libraries,
        RETORT_BIN=str(PACKAGE / "lib/retort"),
        RETORT_SOURCE_DIR=str(TESTS),
        RETORT_CUDA_MODULE=str(PACKAGE / "lib/libretort_cuda.so"),
    )

    def wrapper(name):
        return ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", TESTS / name]

    return all([gtest(n, 50, [f], wrapper) for n, f in MEMCHECK.items() if (TESTS / n).exists()])
