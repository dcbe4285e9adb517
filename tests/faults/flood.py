"""Strangers at every port of a run: they say half a proof, or nothing, as long as it lasts.

They know what anybody on the host can know: the ports, the names of the processes and the id of the
run, which stand on command lines. They do not know the secret, so that the MAC of their hello
(rpc/transport/proof_frames.h) is a guess.
"""
import collections
import hashlib
import os
import pathlib
import socket
import struct
import threading
import time

from relay import HOST, MAGIC

VERSION, CLIENT_HELLO = 3, 1
CONTROL, SUPERVISION = 1, 3
NAME_BYTES, ID_BYTES = 256, 64
STORE = "launcher/store"
OPEN = 600  # connections that are kept open, of all ports together
LOOK = 0.5  # seconds between two looks at who listens where
LISTENING = "0A"


def padded(text, size):
    return struct.pack("<H", len(text)) + text.encode().ljust(size, b"\0")


def address(host, port):
    """As an end sees it: IPv4, mapped."""
    return b"\0" * 10 + b"\xff\xff" + socket.inet_aton(host) + struct.pack("<H", port)


def hello(stream, name, run, purpose):
    """A client's first frame on this connection, with a guess in place of its MAC."""
    body = (struct.pack("<B", purpose) + os.urandom(32) + padded("student/77", NAME_BYTES) +
            padded(name, NAME_BYTES) + hashlib.sha256(run.encode()).digest() +
            padded("run", ID_BYTES) + padded("", ID_BYTES) + address(*stream.getsockname()) +
            address(*stream.getpeername()) + os.urandom(32))
    return MAGIC + struct.pack("<IHH", VERSION, CLIENT_HELLO, len(body)) + body


def listening_sockets():
    """inode -> port, of this host's addresses."""
    found = {}
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == LISTENING:
            found[words[9]] = int(words[1].split(":")[1], 16)
    return found


def argument(arguments, name):
    return arguments[arguments.index(name) + 1] if name in arguments else ""


def doors(run):
    """(name, id of the run, port) of everything that listens."""
    sockets, found, ids = listening_sockets(), [], set()
    ports = collections.defaultdict(list)
    for pid in run.processes():
        try:
            arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            mine = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        role = argument(arguments, "--role")
        name = f"{role}/{argument(arguments, '--rank')}" if role else STORE
        ids.add(argument(arguments, "--run"))
        for link in mine:
            if link.startswith("socket:[") and link[8:-1] in sockets:
                ports[name].append(sockets[link[8:-1]])
    run_id = max(ids, default="")
    for name, where in ports.items():
        found += [(name, run_id, port) for port in set(where)]
    return found


class Flood(threading.Thread):
    """So many connections a second, of the shapes that `draw` draws, until the run has ended."""

    def __init__(self, run, draw, rate):
        super().__init__(daemon=True)
        self.run_, self.draw, self.rate = run, draw, rate
        self.made = collections.Counter()  # by shape
        self.failed = 0
        self.start()

    def run(self):
        open_ones, known, looked = collections.deque(), [], 0.0
        while self.run_.running():
            if time.monotonic() - looked > LOOK:
                known, looked = doors(self.run_), time.monotonic()
            if known:
                self.knock(*self.draw.choice(known), open_ones)
            while len(open_ones) > OPEN:
                open_ones.popleft().close()
            time.sleep(1 / self.rate)
        for stream in open_ones:
            stream.close()

    def knock(self, name, run_id, port, open_ones):
        shape = self.draw.choice(["hello", "hello", "hello", "supervision", "half", "silence"])
        stream = socket.socket()
        stream.settimeout(1)
        try:
            stream.connect((HOST, port))
            said = hello(stream, name, run_id, SUPERVISION if shape == "supervision" else CONTROL)
            if shape == "half":
                said = said[:100]
            if shape != "silence":
                stream.sendall(said)
        except OSError:
            self.failed += 1
            stream.close()
            return
        self.made[shape] += 1
        open_ones.append(stream)
