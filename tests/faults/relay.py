"""A relay between the processes of a run: it sees what they say, and can spoil the connections.

    process -> 127.0.0.2:PORT (the relay) -> from 127.0.0.3 -> 127.0.0.1:PORT (another process)

With `rpc.advertise: 127.0.0.2` and a range of ports in `rpc.port` every connection between two
processes passes here; address_shim.c says why they accept that. The first frame of a connection
names both ends and whether it is for control or for data (rpc/transport/proof_frames.h). Without
TLS the names of methods can be read, so that a message is known while it is on its way.

Threads: a relay runs in one of its own; on_message is called there, and the numbers may be read
anywhere. close() ends it.
"""
import asyncio
import collections
import dataclasses
import random
import socket
import struct
import threading
import time

LISTEN, DIAL, HOST = "127.0.0.2", "127.0.0.3", "127.0.0.1"
MAGIC = struct.pack("<Q", 0x3154524F544552FF)
HELLO_BYTES = 16 + 1 + 32 + 2 * 258  # header, purpose, nonce, two names
CHUNK = 256 << 10

# What a message belongs to, by the method that it names; ends with its number of arguments.
METHODS = {
    b"teacher.info": "handshake",
    b"teacher.head": "handshake",
    b"generator.info": "handshake",
    b"environment.info": "handshake",
    b"teacher.forward": "request",
    b"teacher.pull": "request",
    b"generator.submit": "request",
    b"generator.collect": "request",
    b"generator.score": "request",
    b"environment.open": "request",
    b"environment.step": "request",
    b"environment.close": "request",
    b"weights.bucket": "push",
    b"weights.pass": "push",
    b"weights.commit": "commit",
}
LONGEST = max(map(len, METHODS))


@dataclasses.dataclass
class Cut:
    """Swallows what passes, without a word, from the `ordinal`th message of `phase` on.

    What a connection has lost stays lost, so those that are spoilt never recover. New ones are
    spoilt too until `seconds` are over.
    """

    victim: str
    phase: str
    ordinal: int
    path: str  # control, data, all
    direction: str  # up: to the process that was dialed; down: from it; both
    seconds: float
    began: float = 0.0
    connections: list = dataclasses.field(default_factory=list)

    def hits(self, connection):
        return connection.target == self.victim and self.path in ("all", connection.purpose)

    def noticed(self):
        """Seconds until both ends had given up the last connection of the beginning; None: not."""
        ends = [c.ended for c in self.connections]
        return None if not ends or None in ends else max(ends) - self.began


@dataclasses.dataclass
class Hold:
    """Lets nothing pass, and loses nothing, for `seconds` from the `ordinal`th message of `phase`
    on: the connections to `victim`, old and new, are still and whole."""

    victim: str
    phase: str
    ordinal: int
    path: str  # as a Cut's
    direction: str
    seconds: float
    began: float = 0.0

    def left(self, connection, way):
        """Seconds for which nothing may pass that way."""
        hits = connection.target == self.victim and self.path in ("all", connection.purpose)
        if not self.began or not hits or self.direction not in (way, "both"):
            return 0.0
        return self.began + self.seconds - time.monotonic()


@dataclasses.dataclass
class Weather:
    """What every connection suffers. Seconds, and bytes a second in each direction."""

    latency: float = 0.0
    jitter: float = 0.0
    rate: float = 0.0
    cuts: list = dataclasses.field(default_factory=list)
    closes: list = dataclasses.field(default_factory=list)  # (victim, phase, ordinal, path)
    holds: list = dataclasses.field(default_factory=list)


class Connection:
    def __init__(self):
        self.number = 0  # in the order of acceptance
        self.caller = self.target = self.purpose = ""
        self.lost = {"up": False, "down": False}
        self.writers = []
        self.ended = None  # when both ends had closed
        self.open_ends = 2

    def read_hello(self, data):
        if len(data) < HELLO_BYTES or data[:8] != MAGIC:
            return
        names = []
        for place in (49, 49 + 258):
            (length,) = struct.unpack_from("<H", data, place)
            names.append(data[place + 2:place + 2 + length].decode("ascii", "replace"))
        self.caller, self.target = names
        self.purpose = "control" if data[16] == 1 else "data"

    def end_of(self):
        self.open_ends -= 1
        if self.open_ends == 0:
            self.ended = time.monotonic()

    def abort(self):
        for writer in self.writers:
            writer.transport.abort()


class Relay:
    """Relays `ports`. `on_message(connection, phase, ordinal)` may return "before", "within" or
    "after" and a function, which runs then: the message has not left, has left by half, or has."""

    def __init__(self, ports, weather=None, seed=0, on_message=None):
        self.ports, self.weather = ports, weather or Weather()
        self.on_message = on_message
        self.draw = random.Random(seed)
        self.seen = collections.Counter()  # (target, phase) -> messages
        self.connections = []
        self.errors = []
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()

    def run(self, started):
        asyncio.set_event_loop(self.loop)
        self.servers = [
            self.loop.run_until_complete(
                asyncio.start_server(self.relay, LISTEN, port, limit=CHUNK, backlog=64))
            for port in self.ports
        ]
        started.set()
        self.loop.run_forever()

    def close(self):
        def stop():
            for server in self.servers:
                server.close()
            for connection in self.connections:
                connection.abort()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(stop)
        self.thread.join()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    # ---- one connection ---------------------------------------------------------------------

    async def relay(self, reader, writer):
        connection = Connection()
        connection.writers.append(writer)
        port = writer.get_extra_info("sockname")[1]
        peer_port = writer.get_extra_info("peername")[1]
        dialed = socket.socket()
        dialed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        dialed.setblocking(False)
        try:
            dialed.bind((DIAL, peer_port))
            await self.loop.sock_connect(dialed, (HOST, port))
            theirs, to_them = await asyncio.open_connection(sock=dialed, limit=CHUNK)
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError):
                self.errors.append(repr(error))
            dialed.close()
            self.reset(writer)
            return
        connection.writers.append(to_them)
        for each in connection.writers:
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.number = len(self.connections)
        self.connections.append(connection)
        await asyncio.gather(
            self.pass_on(connection, "up", reader, to_them),
            self.pass_on(connection, "down", theirs, writer))
        for each in connection.writers:
            each.close()

    @staticmethod
    def reset(writer):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def pass_on(self, connection, way, reader, writer):
        chunks = asyncio.Queue(64)
        sender = asyncio.create_task(self.send(connection, way, chunks, writer))
        due, tail = 0.0, b""
        try:
            while True:
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = b""
                due = max(due, time.monotonic() + self.weather.latency +
                          self.draw.uniform(0, self.weather.jitter))
                await chunks.put((due, data, tail))
                if not data:
                    break
                tail = (tail + data)[-(LONGEST - 1):]
            await sender
        finally:
            connection.end_of()

    async def send(self, connection, way, chunks, writer):
        open_end = True
        while True:
            due, data, tail = await chunks.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not data:
                await self.wait_for_holds(connection, way)
                break
            if self.weather.rate:
                await asyncio.sleep(len(data) / self.weather.rate)
            strike = self.look(connection, way, data, tail)
            await self.wait_for_holds(connection, way)
            if connection.lost[way] or not open_end:
                continue
            try:
                await self.deliver(strike, data, writer)
            except OSError:
                open_end = False
        # What ends a connection is lost on a way that is cut, like everything else.
        if open_end and not connection.lost[way]:
            try:
                writer.write_eof() if writer.can_write_eof() else writer.close()
            except OSError:
                pass

    async def wait_for_holds(self, connection, way):
        for hold in self.weather.holds:
            await asyncio.sleep(max(0.0, hold.left(connection, way)))

    @staticmethod
    async def deliver(strike, data, writer):
        place, act = strike if strike else ("after", None)
        if act and place == "before":
            act()
        if act and place == "within":
            writer.write(data[:len(data) // 2])
            await writer.drain()
            act()
            data = data[len(data) // 2:]
        writer.write(data)
        await writer.drain()
        if act and place == "after":
            act()

    # ---- what is seen -----------------------------------------------------------------------

    def phase_of(self, data, tail):
        if data[:8] == MAGIC:
            return "handshake"
        whole = tail + data
        for method, phase in METHODS.items():
            if method in whole:
                return phase
        return None

    def look(self, connection, way, data, tail):
        if not connection.target and way == "up":
            connection.read_hello(data)
        phase = self.phase_of(data, tail if way == "up" else b"")
        strike = None
        if phase and connection.target:
            self.seen[connection.target, phase] += 1
            ordinal = self.seen[connection.target, phase]
            if self.on_message:
                strike = self.on_message(connection, phase, ordinal)
            self.begin_cuts(connection.target, phase, ordinal)
        for cut in self.weather.cuts:
            fresh = cut.began and time.monotonic() < cut.began + cut.seconds
            if fresh and cut.hits(connection):
                self.spoil(cut, connection)
        return strike

    def begin_cuts(self, victim, phase, ordinal):
        for cut in self.weather.cuts:
            if cut.began or (victim, phase, ordinal) != (cut.victim, cut.phase, cut.ordinal):
                continue
            cut.began = time.monotonic()
            cut.connections = [c for c in self.connections if c.ended is None and cut.hits(c)]
            for connection in cut.connections:
                self.spoil(cut, connection)
        for hold in self.weather.holds:
            if not hold.began and (victim, phase, ordinal) == (
                    hold.victim, hold.phase, hold.ordinal):
                hold.began = time.monotonic()
        for close in self.weather.closes:
            if (victim, phase, ordinal) != close[:3]:
                continue
            alive = [c for c in self.connections if c.ended is None and c.target == victim
                     and close[3] in ("all", c.purpose)]
            for connection in alive:
                connection.abort()

    @staticmethod
    def spoil(cut, connection):
        for way in ("up", "down"):
            if cut.direction in (way, "both"):
                connection.lost[way] = True
