"""A launched run: its folder, what it says of its processes, its result, and what it leaves."""
import collections
import ctypes
import hashlib
import json
import os
import pathlib
import select
import signal
import socket
import statistics
import struct
import subprocess
import threading
import time

from relay import HOST, LISTEN

STALL = 240  # seconds without a step, a change of state or an end: a hang
PEER_TIMEOUT = 2.0
SETTINGS = ["rpc.heartbeat_interval=200ms", f"rpc.peer_timeout={PEER_TIMEOUT:.0f}s"]
NUM_PORTS = 24
# Numbers that depend on the clock, or on what a process did before.
TIMES = {
    "step_time",
    "peak_device_memory",
    "tokens_per_second",
    "data_wait_time",
    "teacher_wait_time",
    "reference_wait_time",
    "generation_time",
    "generator_wait_time",
    "reward_time",
    "reward_wait_time",
    "weight_sync_time",
}


def kill(pid, number=signal.SIGKILL):
    """False if there is no such process."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def processes_of(folder):
    """All whose command line names the folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder) in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def free_ports(draw):
    """A range below the ephemeral ports in which nobody listens."""
    while True:
        first = draw.randrange(10000, 32000 - NUM_PORTS)
        try:
            for port in range(first, first + NUM_PORTS):
                for host in (HOST, LISTEN):
                    with socket.socket() as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((host, port))
            return range(first, first + NUM_PORTS)
        except OSError:
            continue


def rows_of(folder):
    """The metrics that must repeat, a text for each row."""
    rows = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        kept = {k: v for k, v in row.items() if k not in TIMES and not k.startswith("rpc/")}
        rows.append(json.dumps(kept, sort_keys=True))
    return rows


def result_of(folder):
    """What must repeat of a run: the metrics without times, and the model."""
    digest = hashlib.sha256()
    for row in rows_of(folder):
        digest.update(row.encode())
    digest.update((folder / "final/model.safetensors").read_bytes())
    return digest.hexdigest()


class Run:
    """A launch of a recipe in a folder of its own. With `ports` its connections pass a relay, which
    must listen there before, and `shim` is preloaded. Without a text another start of the run that
    the folder has. `output`, `errors`: descriptors instead of a file in the folder. `before`: a
    command that becomes the launcher; `variables`: of its environment. `timeouts`: settings that a
    recipe with one role refuses."""

    def __init__(self, program, folder, text, ports=None, shim=None, settings=(), output=None,
                 errors=None, before=(), variables=None, timeouts=SETTINGS):
        folder.mkdir(parents=True, exist_ok=text is None)
        self.folder, self.run = folder, folder / "run"
        if text is not None:
            (folder / "recipe.yaml").write_text(text + f"output_dir: {self.run}\n")
        self.output = open(folder / "output.txt", "a")
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                           **(variables or {}))
        more = [*timeouts, *settings]
        self.ports = ports
        if ports:
            environment["LD_PRELOAD"] = str(shim)
            more += [f"rpc.port={ports[0]}-{ports[-1]}", f"rpc.advertise={LISTEN}"]
        self.began = time.monotonic()
        self.command = [*before, program, "launch", str(folder / "recipe.yaml"), *more]
        self.environment = environment
        self.process = subprocess.Popen(
            self.command, stdout=self.output if output is None else output,
            stderr=subprocess.STDOUT if errors is None else errors, env=environment,
            start_new_session=True)

    def running(self):
        return self.process.poll() is None

    def wait(self, stall=STALL):
        """The exit code; None if it hangs. A busy machine may be slow, but goes on."""
        seen, since = None, time.monotonic()
        while True:
            try:
                code = self.process.wait(1)
                break
            except subprocess.TimeoutExpired:
                pass
            if (now := self.progress()) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > stall:
                code = None
                for pid in self.processes():
                    kill(pid)
                self.process.wait()
                break
        self.seconds = time.monotonic() - self.began
        self.output.close()
        return code

    def progress(self):
        """What changes as long as a run goes on."""
        try:
            steps = (self.run / "metrics.jsonl").stat().st_size
        except OSError:
            steps = 0
        return steps, self.states()

    def processes(self):
        return processes_of(self.folder)

    def sockets(self):
        """Connections at the run's ports that have not ended."""
        if not self.ports:
            return []
        lines = subprocess.run(["ss", "-tanH"], capture_output=True, text=True).stdout.splitlines()
        mine = {str(port) for port in self.ports}
        left = []
        for line in lines:
            state, _, _, local, remote = line.split()[:5]
            ends = {local.rsplit(":", 1)[1], remote.rsplit(":", 1)[1]}
            if state not in ("TIME-WAIT", "CLOSE") and ends & mine:
                left.append(line)
        return left

    def states(self):
        """What status.json says: "teacher/0" -> (state, pid)."""
        try:
            status = json.loads((self.run / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return {f"{p['role']}/{p['rank']}": (p["state"], p["pid"]) for p in status["processes"]}

    def restarts(self):
        """"teacher/0" -> how often it was started again."""
        try:
            status = json.loads((self.run / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return {f"{p['role']}/{p['rank']}": p["restarts"] for p in status["processes"]}

    def steps(self):
        """Of how many metrics.jsonl has a row."""
        try:
            return (self.run / "metrics.jsonl").read_text().count("\n")
        except OSError:
            return 0

    def log(self, name):
        return self.run / "logs" / (name.replace("/", "-") + ".log")

    def times_serving(self, name):
        """How often a process of that name has said that it serves."""
        try:
            return self.log(name).read_text(errors="replace").count("] serving ")
        except OSError:
            return 0

    def result(self):
        return result_of(self.run)


class SaveWatch:
    """Tells when the temporary folder of a checkpoint appears in a run's folder (inotify)."""

    CREATE, ISDIR = 0x100, 0x40000000

    def __init__(self, folder):
        self.folder = folder
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watched = False

    def wait(self, seconds):
        """The temporary folders that appeared, as soon as there are some."""
        if not self.watched:
            made = self.libc.inotify_add_watch(self.fd, str(self.folder).encode(), self.CREATE)
            self.watched = made >= 0
            if not self.watched:
                time.sleep(min(seconds, 0.002))
                return []
        if not select.select([self.fd], [], [], seconds)[0]:
            return []
        events, names = os.read(self.fd, 1 << 16), []
        while events:
            _, mask, _, length = struct.unpack_from("iIII", events)
            name = events[16:16 + length].rstrip(b"\0").decode()
            events = events[16 + length:]
            if mask & self.ISDIR and name.startswith("checkpoint-") and not name[11:].isdigit():
                names.append(self.folder / name)
        return names

    def close(self):
        """When nobody waits any more."""
        os.close(self.fd)


class Descriptors(threading.Thread):
    """Counts the descriptors of launcher and student, by kind, while the run lasts."""

    def __init__(self, run, interval=0.1):
        super().__init__(daemon=True)
        self.run_, self.interval = run, interval
        self.samples = []  # (time, name, all serve, {kind: count})
        self.start()

    def run(self):
        while self.run_.running():
            states = self.run_.states()
            student = states.get("student/0", ("", 0))
            up = student[0] in ("training", "saving") and all(
                state in ("ready", "training", "serving", "saving") for state, _ in states.values())
            pids = {"launcher": self.run_.process.pid, "student/0": student[1]}
            for name, pid in pids.items():
                if pid > 0:
                    self.samples.append((time.monotonic(), name, up, self.kinds(pid)))
            time.sleep(self.interval)

    @staticmethod
    def kinds(pid):
        counted = collections.Counter()
        try:
            for entry in os.scandir(f"/proc/{pid}/fd"):
                try:
                    counted[os.readlink(entry.path).split(":")[0].split("/")[0] or "file"] += 1
                except OSError:
                    pass
        except OSError:
            pass
        # Files come and go with every checkpoint.
        del counted["file"]
        return counted

    def median(self, name, begin, end):
        """Of each kind, while all processes served between two times."""
        rows = [counted for when, whose, up, counted in self.samples
                if whose == name and up and counted and begin <= when < end]
        kinds = {kind for row in rows for kind in row}
        return {kind: statistics.median_low(row[kind] for row in rows) for kind in sorted(kinds)}
