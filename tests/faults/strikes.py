"""Losses of serving processes at moments that were seen, not hoped for.

    loading     status.json says that the process is loading, and its log not yet that it serves
    handshake   a frame of the proof, or a question for what the role is, is on its way (relay.py)
    request     so is a request, a push of weights, their commit
    push
    commit
    save        the temporary folder of a checkpoint is there (inotify)

What is recorded is the phase in which the signal was sent. A victim that is away then is struck at
the next occasion; one that is never met in that phase leaves `phase` None, and counts nowhere.
"""
import dataclasses
import signal
import threading
import time

from launched import SaveWatch, kill

PHASES = ["loading", "handshake", "request", "push", "commit", "save"]
ON_THE_WIRE = {"handshake", "request", "push", "commit"}


@dataclasses.dataclass
class Strike:
    victim: str
    number: signal.Signals
    wanted: str
    ordinal: int  # on the wire: of the messages to the victim; save: of the checkpoints
    place: str  # on the wire: before, within or after the message
    delay: float
    fired: float = 0.0
    phase: str = None
    pid: int = 0

    def fire(self, run, phase):
        state, pid = run.states().get(self.victim, (None, 0))
        if self.fired or pid <= 0 or state in ("stopped", "failed") or not kill(pid, self.number):
            return False
        self.fired, self.phase, self.pid = time.monotonic(), phase, pid
        return True

    def row(self):
        return {
            "victim": self.victim,
            "signal": self.number.name,
            "wanted": self.wanted,
            "phase": self.phase,
            "place": self.place if self.wanted in ON_THE_WIRE else None,
            "ordinal": self.ordinal,
        }


class Striker:
    """Carries out the strikes of a run. `relay` asks on_message; the rest has threads."""

    def __init__(self, strikes):
        self.strikes = strikes
        self.run = None
        self.threads = []

    def begin(self, run):
        self.run = run
        for index, strike in enumerate(self.strikes):
            work = {"loading": self.strike_loading, "save": self.strike_save}.get(strike.wanted)
            if work:
                thread = threading.Thread(target=work, args=(index, strike), daemon=True)
                self.threads.append(thread)
                thread.start()

    def join(self):
        for thread in self.threads:
            thread.join()

    def on_message(self, connection, phase, ordinal):
        for strike in self.strikes:
            due = not strike.fired and ordinal >= strike.ordinal
            if not due or (strike.victim, strike.wanted) != (connection.target, phase):
                continue
            if self.run is None:
                continue

            def act(strike=strike):
                if strike.place == "after":
                    time.sleep(strike.delay)
                strike.fire(self.run, phase)

            return strike.place, act
        return None

    # The first start, or the one after an earlier strike at the same process.
    def strike_loading(self, index, strike):
        before = [s for s in self.strikes[:index] if s.victim == strike.victim]
        while self.run.running() and not all(s.fired for s in before):
            time.sleep(0.002)
        old = {s.pid for s in before}
        served = self.run.times_serving(strike.victim)
        while self.run.running():
            state, pid = self.run.states().get(strike.victim, (None, 0))
            if state in ("starting", "loading") and pid > 0 and pid not in old:
                break
            time.sleep(0.002)
        time.sleep(strike.delay)
        if not self.run.running():
            return
        state, _ = self.run.states().get(strike.victim, (None, 0))
        loading = state in ("starting", "loading")
        if loading and self.run.times_serving(strike.victim) == served:
            strike.fire(self.run, "loading")

    def strike_save(self, _, strike):
        saves, watch = 0, SaveWatch(self.run.run)
        while self.run.running() and not strike.fired:
            for folder in watch.wait(0.1):
                saves += 1
                if saves < strike.ordinal:
                    continue
                time.sleep(strike.delay)
                if folder.exists() and strike.fire(self.run, "save"):
                    break
        watch.close()


def draw_strike(draw, roles, reference, phase=None):
    """Of one process; roles: name -> how many. `reference`: what the run without a fault showed."""
    lost = draw.choice(sorted(roles))
    victim = f"{lost}/{draw.randrange(roles[lost])}"
    seen = reference["seen"].get(victim, {})
    phases = [p for p in PHASES if p in ("loading", "save") or seen.get(p)]
    phase = phase if phase in phases else draw.choice(phases)
    count = reference["saves"] if phase == "save" else seen.get(phase, 1)
    # The last fifth is left alone: it may be over before the signal has come.
    ordinal = draw.randint(1, max(1, int(0.8 * count)))
    delay = draw.uniform(0, 0.001)
    if phase == "loading":
        delay = draw.uniform(0, 0.9 * reference["load"])
    return Strike(
        victim, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]), phase, ordinal,
        draw.choice(["before", "within", "after"]), delay)
