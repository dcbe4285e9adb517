"""Runs the steps, each in a process and with a limit of its own."""

import os
import signal
import subprocess
import sys
import time

import device_memory
from package import HERE
from processes import Child, Command
from run_inputs import TINY_MODELS, TINY_VOCAB, prepare
from run_recipes import models_of
from step_list import Step, all_steps


class Running:
    def __init__(self, step, options, limit):
        self.step, self.limit, self.start = step, limit, time.monotonic()
        with open(options.output / f"{step.name}.log", "wb") as log:
            self.command = Command(
                [
                    sys.executable,
                    HERE,
                    "--child",
                    step.name,
                    "--output",
                    options.output,
                    "--work",
                    options.work,
                    "--seconds",
                    limit,
                    *(["--tiny"] if options.tiny else []),
                ],
                {"PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self):
        """(state, seconds)"""
        try:
            rc = self.command.process.wait(max(0.1, self.start + self.limit - time.monotonic()))
            state = "ok" if rc == 0 else f"failed ({rc})"
        except subprocess.TimeoutExpired:
            state = "killed at its limit"
        self.command.kill()
        return state, time.monotonic() - self.start


def chosen(step, options):
    def named(names):
        return any(step.name == n or step.name.startswith(n + ".") for n in names)

    return (not options.only or named(options.only)) and not named(options.skip)


class Stopped(Exception):
    pass


def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


class Models:
    """Those of whole runs, which `prepare` makes in a process beside the first steps."""

    def __init__(self, options):
        self.work = options.work
        self.making = Running(Step("prepare", prepare, 0, 0), options, 300)

    def wait(self, name, deadline):
        """(whether those of this run are there, seconds waited)"""
        start = time.monotonic()
        while True:
            ended = self.failed() is not None
            there = all((self.work / f"{n}.ready").exists() for n in models_of(self.work, name))
            if there or ended or time.monotonic() > deadline:
                return there, time.monotonic() - start
            time.sleep(0.2)

    def failed(self):
        """None while they are being made."""
        rc = self.making.command.process.poll()
        return None if rc is None else rc != 0


def is_run(step):
    return step.name.startswith("runs.")


def wait_for_models(step, models, end):
    """(state, None when they are there; what to say of the time that it took)"""
    there, waited = models.wait(step.name.removeprefix("runs."), end - step.least())
    note = f"after {waited:.0f} s of waiting for models" if waited > 0.5 else ""
    if there:
        return None, note
    if models.failed() is not None:
        return "failed: no models, see prepare.log", note
    return "not started: models were still being made", note


def run_steps(options):
    """name -> (state, seconds, what else is to be said of the time)"""
    end = time.monotonic() + 60 * options.minutes - 6  # to pack and to print
    states, running, models, others = {}, [], None, device_memory.held()
    batches = [[s for s in batch if chosen(s, options)] for batch in all_steps()]
    try:
        if any(is_run(s) for batch in batches for s in batch):
            models = Models(options)
        for batch in batches:
            running, notes = [], {}
            for step in batch:
                state, notes[step.name] = (
                    wait_for_models(step, models, end) if is_run(step) else (None, "")
                )
                left = end - time.monotonic()
                if not state and left < step.least():
                    state = f"not started: {max(0, left):.0f} s left, needs {step.least()}"
                if state:
                    states[step.name] = state, 0, notes[step.name]
                else:
                    running.append(Running(step, options, round(min(step.limit, left), 1)))
            for one in running:
                states[one.step.name] = "stopped", 0, notes[one.step.name]
            for one in running:
                states[one.step.name] = *one.wait(), notes[one.step.name]
            mib = device_memory.wait_until_free(others, end) if running else 0
            if mib > device_memory.IDLE:
                state, seconds, note = states[running[-1].step.name]
                more = f"{mib} MiB of the device still held"
                states[running[-1].step.name] = (
                    state,
                    seconds,
                    "; ".join(filter(None, [note, more])),
                )
        if models and models.failed():
            states["prepare"] = "failed", 0, ""
    except (Stopped, KeyboardInterrupt):
        states["(stopped by a signal)"] = "", 0, ""
    finally:
        for one in [*running, *([models.making] if models else [])]:
            one.command.kill()
    return states


def child(options):
    Child.step, Child.output, Child.work = options.child, options.output, options.work
    Child.is_tiny = options.tiny
    Child.deadline = time.monotonic() + options.seconds - 1
    if options.child == "prepare":
        os.nice(5)
        return 0 if (prepare(TINY_MODELS, TINY_VOCAB) if options.tiny else prepare()) else 1
    step = next(s for batch in all_steps() for s in batch if s.name == options.child)
    return 1 if step.function() is False else 0
