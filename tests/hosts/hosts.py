"""Whole hosts on one machine: each has processes, mounts, network, host name and System V objects
of its own, a /tmp, /run and /dev/shm that nobody else sees, and a real sshd. A bridge joins them.

    with Network(["h1", "h2"], keep=[folder]) as network:
        h1, h2 = network.hosts
        h1.run(["ssh", "-i", IDENTITY, "h2", "hostname"])

Ending: each host's first process ends with this one, however this one ends, and takes the host's
other processes, its network and its mounts along; no file or name outside is made.
Needs root, unshare, nsenter, ip and sshd: why_not() says what is missing."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

INIT = pathlib.Path(__file__).with_name("host_init.py")
WIRE = pathlib.Path(__file__).with_name("wire.py")
IDENTITY = "/etc/ssh/id"  # in each host: the key that all of them admit
PROGRAMS = ("unshare", "nsenter", "ip", "tc", "ss", "sshd", "ssh", "ssh-keygen")
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PRIVATE = ("/tmp", "/run", "/dev/shm")  # what a host has of its own
SSHD_PORT = 22
ETHERNET, MTU = 14, 1500  # bytes: a frame's header, and the most that follows it
TRIAL = """set -e; mount -t tmpfs none /mnt; ip link add br0 type bridge
ip link add veth0 type veth peer name veth1; ip addr add fd77::1/64 dev veth0 nodad"""


def why_not():
    """Why there can be no hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "hosts as namespaces need root"
    for program in PROGRAMS:
        if not shutil.which(program, path=SEARCH):
            return f"there is no {program} (Debian: openssh-server, iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "sh", "-c", TRIAL],
        capture_output=True, text=True, env=dict(os.environ, PATH=SEARCH))
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def end_with_parent():
    """Of a child, before it becomes another program: it is killed when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def checked(argv):
    """What a command says; its error if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr.strip()}")
    return done.stdout


def wait_until(holds, what, seconds=30):
    """`seconds` only bound a hang."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Process:
    """A program in a host, with its output in `log`."""

    def __init__(self, host, argv, log, env=None):
        self.log = pathlib.Path(log)
        with open(self.log, "w") as out:
            self.entry = subprocess.Popen(
                host.enter(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env=dict(os.environ, PATH=SEARCH, **(env or {})), preexec_fn=end_with_parent)
        self.pid = child_of(self.entry)  # of this side

    def signal(self, number):
        os.kill(self.pid, number)

    def running(self):
        return self.entry.poll() is None

    def wait(self, seconds):
        """The exit code; of one that a signal ended: 128 + signal, as nsenter says it."""
        code = self.entry.wait(seconds)
        return code if code >= 0 else 128 - code

    def text(self):
        return self.log.read_text(errors="replace")


def child_of(parent, pid=None):
    """The pid of the first child of a Popen that makes one, or of its descendant `pid`."""
    pid = pid or parent.pid
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")

    def found():
        try:
            return parent.poll() is not None or children.read_text().split()
        except OSError:
            return True
    wait_until(found, "a process starts")
    if parent.poll() is not None:
        return parent.pid
    return int(children.read_text().split()[0])


class Host:
    """One of a Network's."""

    def __init__(self, network, index, name):
        self.name, self.index, self.port = name, index, f"p{index}"
        self.end, self.wire = self.port, None  # of its line at the switch; what makes it bad
        self.ipv4, self.ipv6 = f"10.77.0.{10 + index}", f"fd77::{10 + index}"
        self.network = network

    def start(self, folder, keep):
        """`keep`: folders of this machine that stay visible where they would be hidden."""
        self.unshared = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork",
             "--kill-child=SIGKILL", "--propagation", "private", sys.executable, str(INIT),
             self.name, str(folder), shutil.which("sshd", path=SEARCH),
             str(self.network.patience), *map(str, keep)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            preexec_fn=end_with_parent)
        if self.unshared.stdout.readline().strip() != "up":
            raise RuntimeError(f"host {self.name} did not come up")
        self.init = child_of(self.unshared)

        self.network.ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0",
                        "netns", str(self.init))
        self.attach()
        self.network.ip("link", "set", self.port, "up")
        for argv in (["addr", "add", f"{self.ipv4}/24", "dev", "eth0"],
                     ["addr", "add", f"{self.ipv6}/64", "dev", "eth0", "nodad"],
                     ["link", "set", "lo", "up"], ["link", "set", "eth0", "up"]):
            self.run(["ip", *argv])
        wait_until(lambda: f":{SSHD_PORT} " in self.run(["ss", "-tlnH"]), "sshd listens")

    def enter(self, argv):
        return ["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "--",
                *map(str, argv)]

    def run(self, argv):
        """What a command in this host says; its error if it fails."""
        return checked(self.enter(argv))

    def attach(self):
        """Joins the others again."""
        self.network.ip("link", "set", self.end, "master", "br0")

    def cut(self):
        """Nothing comes or goes, and nobody here is told: the link itself stays up."""
        self.network.ip("link", "set", self.end, "nomaster")

    def gone(self):
        """As if the power failed: no connection is closed first."""
        self.cut()
        os.kill(self.init, signal.SIGKILL)
        self.unshared.wait()

    def limit(self, rate=None, delay=0, loss=0):
        """Of what it sends and of what it gets: the rate as tc writes it ("100mbit"), seconds on
        the way, and which part is lost. Once a host."""
        if rate:
            shape = ["root", "tbf", "rate", rate, "burst", "128k", "latency", "200ms"]
            self.run(["tc", "qdisc", "replace", "dev", "eth0", *shape])
            checked(self.network.enter(["tc", "qdisc", "replace", "dev", self.port, *shape]))
        if delay or loss:
            self.lengthen(delay, loss)

    def lengthen(self, delay, loss):
        """Puts a wire between the host's port and the switch."""
        near, far, join = f"n{self.index}", f"f{self.index}", f"b{self.index}"
        self.wire = subprocess.Popen(
            self.network.enter([sys.executable, str(WIRE), near, far, str(delay), str(loss)]),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            preexec_fn=end_with_parent)
        if self.wire.stdout.readline().strip() != "up":
            raise RuntimeError(f"the wire of {self.name} did not come up (/dev/net/tun?)")

        self.cut()
        self.network.ip("link", "add", join, "type", "bridge")
        for device in (self.port, near):
            self.network.ip("link", "set", device, "master", join)
        for device in (join, near, far):
            self.network.ip("link", "set", device, "up")
        self.end = far
        self.attach()

    def bytes(self):
        """(sent, received) over its link so far."""
        return self.count("bytes")

    def carried(self):
        """bytes() without the headers of Ethernet, IP and TCP."""
        header = ETHERNET + self.headers()
        return tuple(size - header * packets
                     for size, packets in zip(self.bytes(), self.count("packets")))

    def resent(self):
        """Of what it sent, the bytes that TCP sent again, at most: it may on a busy machine."""
        lines = [line.split() for line in self.run(["cat", "/proc/net/snmp"]).splitlines()]
        names, numbers = [line for line in lines if line[0] == "Tcp:"]
        return int(numbers[names.index("RetransSegs")]) * (MTU - self.headers())

    def headers(self):
        """Of IP and of TCP, which has time stamps."""
        return (40 if self.network.family == 6 else 20) + 32

    def count(self, what):
        link = json.loads(self.network.ip("-s", "-j", "link", "show", self.port))[0]
        return link["stats64"]["rx"][what], link["stats64"]["tx"][what]

    def processes(self):
        """{pid of this side: command line}, without the host's own."""
        mine, found = os.readlink(f"/proc/{self.init}/ns/pid"), {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == mine:
                    text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = text or (entry / "comm").read_text().strip()
            except OSError:
                pass
        own = {self.init} | {p for p, text in found.items() if text.startswith("sshd: ")
                             and "listener" in text}
        return {pid: text for pid, text in found.items() if pid not in own}

    def leftovers(self):
        """What a run should have taken along: processes, listening ports, files."""
        left = [f"process {text}" for text in self.processes().values()]
        for line in self.run(["ss", "-tlnH"]).splitlines():
            if not line.split()[3].endswith(f":{SSHD_PORT}"):
                left.append(f"port {line}")
        for place in ("/tmp", "/dev/shm"):
            for file in self.run(["find", place, "-xdev", "-type", "f"]).splitlines():
                left.append(f"file {file}")
        return left


class Network:
    """Hosts of these names on one switch. Each finds the others by name, over IPv4, or over IPv6
    where `family` is 6. `patience`: seconds that an sshd waits for a client that is silent."""

    def __init__(self, names, keep=(), family=4, patience=20):
        self.family, self.patience = family, patience
        self.hosts = [Host(self, i + 1, name) for i, name in enumerate(names)]
        # A folder in a private place of a host is seen there if it is kept.
        self.keep = sorted({str(path) for path in keep if str(path).startswith(PRIVATE)})

    def __enter__(self):
        # Its process, and so the network that is in no file, ends with this one.
        self.switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"],
                                       preexec_fn=end_with_parent)
        try:
            own = os.readlink("/proc/self/ns/net")
            wait_until(lambda: os.readlink(f"/proc/{self.switch.pid}/ns/net") != own, "a switch")
            self.ip("link", "add", "br0", "type", "bridge")
            self.ip("link", "set", "br0", "up")
            with tempfile.TemporaryDirectory() as folder:
                self.write_keys(pathlib.Path(folder))
                for host in self.hosts:
                    host.start(folder, self.keep)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        processes = [h.unshared for h in self.hosts if hasattr(h, "unshared")] + [self.switch]
        processes += [h.wire for h in self.hosts if h.wire]
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def enter(self, argv):
        return ["nsenter", "-t", str(self.switch.pid), "-n", "--", *argv]

    def ip(self, *argv):
        return checked(self.enter(["ip", *argv]))

    def write_keys(self, folder):
        """What each host takes over into its /etc."""
        known, names = [], ["127.0.0.1 localhost", "::1 localhost"]
        for host in self.hosts:
            key = folder / f"host-{host.name}"
            checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
            public = key.with_suffix(".pub").read_text()
            known.append(f"{host.name},{host.ipv4},{host.ipv6} {public}")
            names.append(f"{host.ipv6 if self.family == 6 else host.ipv4} {host.name}")
        checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")])
        (folder / "known").write_text("".join(known))
        (folder / "hosts").write_text("\n".join(names) + "\n")
