"""Processes: ended with all that they started, and within the time that a step has left."""

import os
import pathlib
import selectors
import signal
import subprocess
import time

MARK = "RETORT_ON_DEVICE"  # an environment variable: what a process was started by


def kill_marked(mark):
    """Ends every process that was started with this mark, or by one that was."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(5):
        found = False
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            if int(folder.name) == os.getpid():
                continue
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                if any(v == wanted or v.startswith(wanted + b"/") for v in variables):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True
            except OSError:
                pass
        if not found:
            return
        time.sleep(0.1)


class Command:
    """A program in a session of its own, with a mark, by which all that it starts is ended."""

    count = 0

    def __init__(self, argv, env=None, **options):
        Command.count += 1
        base = os.environ.get(MARK)
        self.mark = f"{base}/{Command.count}" if base else f"{os.getpid()}-{time.time_ns()}"
        env = dict(os.environ, **(env or {}), **{MARK: self.mark})
        options.setdefault("stdin", subprocess.DEVNULL)
        self.process = subprocess.Popen(
            [str(a) for a in argv], env=env, start_new_session=True, **options
        )

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        kill_marked(self.mark)
        self.process.wait()


class Child:
    """What a step's own process knows: where results go, and how much time is left."""

    step, output, work, deadline = "", None, None, 0.0
    is_tiny = False  # sizes that only show that everything runs

    @classmethod
    def left(cls):
        return cls.deadline - time.monotonic()

    @classmethod
    def tiny(cls, *arguments):
        """These, where sizes are tiny."""
        return arguments if cls.is_tiny else ()


def run(argv, limit, env=None, cwd=None):
    """(exit code, None past the limit; text) of a command whose output also goes to the log."""
    print("$", *argv, flush=True)
    try:
        command = Command(argv, env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as e:
        print(e, flush=True)
        return 127, str(e)
    lines, rc = [], None
    for line in lines_of(command, time.monotonic() + min(limit, Child.left())):
        if line is not None:
            lines.append(line)
            print(line, flush=True)
    if command.process.poll() is not None:
        rc = command.process.returncode
    command.kill()
    print(f"-> exit code {rc}", flush=True)
    return rc, "\n".join(lines)


def lines_of(command, deadline):
    """Its lines as they come, None each half second without one, to its end or the deadline."""
    pipe, rest, ended = command.process.stdout, b"", None
    os.set_blocking(pipe.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if not selector.select(min(0.5, max(0.0, deadline - time.monotonic()))):
                yield None
                if command.process.poll() is not None:  # something else may hold the pipe
                    break
                continue
            data = pipe.read()
            if data is None:
                continue
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")
    try:
        command.process.wait(timeout=max(0.05, min(5.0, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        pass
