"""Connections that carry nothing for CUT seconds, with rpc.peer_timeout above that: nobody is lost.

    long cut   as "network": the run is in a network namespace of its own (root), whose loopback
               swallows every packet, or is down, so that TCP tries again at intervals that double;
               as "relay": what passes between two processes on control connections, data
               connections or all, one way or both, waits at the relay, and the TCP connections stay
               whole. The run goes on without a restart, to the numbers of an undisturbed one.
"""
import os
import random
import shutil
import subprocess
import threading
import time

from launched import Run, kill, wait_for
from relay import Hold, Weather
from scenarios import DRAWN, SCENARIOS
from strikes import ON_THE_WIRE, draw_strike

KINDS = ("long cut",)
CUT = 45.0
SETTINGS = ["rpc.peer_timeout=150s"]
STALL = 400.0  # more than the cut, and TCP's longest interval after it
NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# What cuts a loopback, and what mends it.
WAYS = {
    "packets lost": ("tc qdisc replace dev lo root blackhole", "tc qdisc del dev lo root"),
    "loopback down": ("ip link set lo down", "ip link set lo up"),
}


def cut_network(run, way, when, told):
    """Once `when()` has come. `told`: gets the seconds that the cut lasted."""
    if not wait_for(lambda: when() or not run.running(), 120) or not run.running():
        return
    enter = ["nsenter", f"--net=/proc/{run.process.pid}/ns/net"]
    cut, mend = (command.split() for command in WAYS[way])
    subprocess.run(enter + cut, check=True)
    began = time.monotonic()
    while run.running() and time.monotonic() - began < CUT:
        time.sleep(0.1)
    if run.running():
        subprocess.run(enter + mend, check=True)
    told.append(time.monotonic() - began)


def by_network(bench, draw, folder, text, reference):
    way = draw.choice(sorted(WAYS))
    delay, after = draw.uniform(0.0, 1.5 * reference["load"]), draw.randrange(1, 20)
    early = draw.random() < 0.3  # while the processes find each other
    words = f"{way}, " + (f"{delay:.2f} s after the start" if early else f"after {after} steps")
    run = Run(bench.program, folder, text, settings=SETTINGS, before=NETWORK)
    began, lasted = time.monotonic(), []

    def when():
        return time.monotonic() - began >= delay if early else run.steps() >= after

    cutter = threading.Thread(target=cut_network, args=(run, way, when, lasted), daemon=True)
    cutter.start()
    code = run.wait(STALL)
    cutter.join()
    return run, code, words, lasted[0] if lasted else 0.0


def by_relay(bench, draw, folder, text, reference, roles):
    strike = draw_strike(draw, roles, reference, draw.choice(sorted(ON_THE_WIRE)))
    while strike.wanted not in ON_THE_WIRE:
        strike = draw_strike(draw, roles, reference)
    hold = Hold(strike.victim, strike.wanted, strike.ordinal,
                draw.choice(["control", "data", "all"]), draw.choice(["up", "down", "both"]), CUT)
    words = (f"relay, {hold.path} {hold.direction}, {hold.victim} at {hold.phase} {hold.ordinal}")
    run, relay = bench.launch(folder, text, draw, settings=SETTINGS, weather=Weather(holds=[hold]))
    code = run.wait(STALL)
    lasted = min(CUT, time.monotonic() - hold.began) if hold.began else 0.0
    relay.close()
    return run, code, words, lasted


def trial(bench, seed, kind):
    """A row as run_faults.py has it."""
    draw = random.Random(f"{seed} {kind}")
    name = draw.choice(DRAWN)
    make, roles = SCENARIOS[name]
    text, reference = make(bench.folder / "data"), bench.reference(name)
    folder = bench.folder / f"trial-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    shared = set(os.listdir("/dev/shm"))
    if draw.random() < 0.5:
        run, code, words, lasted = by_network(bench, draw, folder, text, reference)
    else:
        run, code, words, lasted = by_relay(bench, draw, folder, text, reference, roles)

    restarts = {name: count for name, count in run.restarts().items() if count}
    left = run.processes()
    for pid in left:
        kill(pid)
    outcome = (
        "hang" if code is None
        else f"exit code {code}" if code != 0
        else "lost " + ", ".join(sorted(restarts)) if restarts
        else "other numbers" if run.result() != reference["result"]
        else "left processes" if left
        else "left shared memory" if set(os.listdir("/dev/shm")) - shared
        else "same")
    if outcome == "same":
        shutil.rmtree(folder)
    return {"seed": seed, "build": bench.build, "kind": kind, "scenario": name, "weather": words,
            "losses": [], "cuts": [], "met": lasted > CUT - 1, "cut_seconds": round(lasted, 2),
            "seconds": round(run.seconds, 2), "descriptors": {"compared": False, "grown": {}},
            "outcome": outcome, "left": {"processes": left}}
