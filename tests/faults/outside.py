"""What stands outside a run and must not hold it: readers that do not read, programs that the
user's commands leave behind, and a second launch of the same folder.

    pipes         stderr, or stdout and stderr, of the launcher is a full pipe that nobody reads,
                  while strangers knock at its port, each of whom is a line of its log. The run ends
                  as it would, or stops within STOP seconds of a SIGINT.
    helpers       checkpoint_command and metrics_command leave programs in the background, and the
                  launcher is killed (SIGKILL). None of them stays, and the run goes on at the same
                  ports with --resume, to the numbers of an undisturbed one.
    two launches  of one folder at once: one runs, the other is refused."""
import fcntl
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

from launched import Run, free_ports, kill, processes_of, wait_for
from scenarios import DRAWN, SCENARIOS

KINDS = ("pipes", "helpers", "two launches")
STOP = 60.0  # seconds, of which most are the time that the last lines wait for a reader
END = 30.0   # for processes whose launcher was killed


def trial(bench, seed, kind):
    """A row as run_faults.py has it."""
    draw = random.Random(f"{seed} {kind}")
    name = draw.choice(DRAWN)
    text = SCENARIOS[name][0](bench.folder / "data")
    folder = bench.folder / f"trial-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.monotonic()
    act = {"pipes": pipes, "helpers": helpers, "two launches": two_launches}[kind]
    outcome, words = act(bench, draw, folder, text, bench.reference(name))
    left = processes_of(folder)
    for pid in left:
        kill(pid)
    if left and outcome == "same":
        outcome = "left processes"
    if outcome == "same":
        shutil.rmtree(folder)
    return {"seed": seed, "build": bench.build, "kind": kind, "scenario": name, "weather": words,
            "losses": [], "cuts": [], "seconds": round(time.monotonic() - begin, 2),
            "descriptors": {"compared": False, "grown": {}}, "outcome": outcome,
            "left": {"processes": left}}


# ---- a reader that does not read -------------------------------------------------------------


def full_pipe():
    """Both ends of a pipe in which there is no room."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    return reader, writer


def listening_ports(pid):
    inodes = set()
    try:
        for fd in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(fd.path)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        return []
    ports = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


def knock(run, until):
    """Says words that are no proof at the launcher's port, again and again."""
    while run.running() and not until.wait(0.05):
        for port in listening_ports(run.process.pid):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            except OSError:
                pass


def pipes(bench, draw, folder, text, reference):
    reader, writer = full_pipe()
    both, stops = draw.random() < 0.5, draw.random() < 0.5
    run = Run(bench.program, folder, text, output=writer if both else None, errors=writer)
    os.close(writer)
    done = threading.Event()
    stranger = threading.Thread(target=knock, args=(run, done), daemon=True)
    stranger.start()
    words = f"{'stdout and stderr' if both else 'stderr'}, {'SIGINT' if stops else 'to the end'}"
    try:
        if not stops:
            code = run.wait()
            outcome = ("hang" if code is None else f"exit code {code}" if code != 0
                       else "same" if run.result() == reference["result"] else "other numbers")
            return outcome, words
        after = draw.randrange(1, 20)
        wait_for(lambda: run.steps() >= after or not run.running(), 120)
        asked = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        ended = wait_for(lambda: not run.running(), STOP)
        words += f" after {after} steps, ended {time.monotonic() - asked:.1f} s later"
        code = run.wait()
        return ("hang" if not ended else "same" if code in (0, 130) else f"exit code {code}"), words
    finally:
        done.set()
        stranger.join()
        os.close(reader)


# ---- programs that commands leave behind -----------------------------------------------------


def helpers(bench, draw, folder, text, reference):
    mark = f"3{draw.randrange(10 ** 6):06d}"  # how long they sleep: by that they are known
    leave = f"sleep {mark} >/dev/null 2>&1 </dev/null & "
    ports = free_ports(draw)
    settings = [f"launch.rendezvous.port={ports[0]}", f"rpc.port={ports[1]}-{ports[-1]}",
                f"launch.metrics_command=[sh, -c, '{leave} cat >/dev/null']",
                f"train.checkpoint_command=[sh, -c, '{leave} exit 0']"]

    def left():
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cmdline").read_bytes() == (
                        b"sleep\0" + mark.encode() + b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    run = Run(bench.program, folder, text, settings=settings)
    try:
        after = draw.randrange(4, 20)
        wait_for(lambda: run.steps() >= after or not run.running(), 120)
        run.process.kill()
        run.wait()
        if not wait_for(lambda: not processes_of(folder), END):
            return "left processes", f"SIGKILL after {after} steps"
        words = f"SIGKILL after {after} steps"
        if not wait_for(lambda: not left(), END):
            return "left helpers", f"{words}, {len(left())} left behind"
        again = Run(bench.program, folder, None, settings=settings + ["--resume"])
        code = again.wait()
        return ("hang" if code is None else f"exit code {code}" if code != 0
                else "same" if again.result() == reference["result"] else "other numbers"), words
    finally:
        for pid in left():
            kill(pid)


# ---- a second launch -------------------------------------------------------------------------


def two_launches(bench, draw, folder, text, reference):
    run = Run(bench.program, folder, text)
    delay = draw.choice([0.0, draw.uniform(0, 0.05), draw.uniform(0, 0.5)])
    time.sleep(delay)
    with open(folder / "second.txt", "w") as output:
        second = subprocess.Popen(run.command, stdout=output, stderr=subprocess.STDOUT,
                                  env=run.environment, start_new_session=True)
        code = run.wait()
        try:
            other = second.wait(60)
        except subprocess.TimeoutExpired:
            second.kill()
            second.wait()
            return "hang", f"{delay * 1e3:.0f} ms apart"
    words = f"{delay * 1e3:.0f} ms apart, exit codes {code} and {other}"
    if sorted((code == 0, other == 0)) != [False, True] or not {code, other} <= {0, 2, 3}:
        return f"exit codes {code} and {other}", words
    return "same" if run.result() == reference["result"] else "other numbers", words
