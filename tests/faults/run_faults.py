#!/usr/bin/env python3
"""Loses serving processes of real runs, spoils their connections, compares with undisturbed runs.

Each trial draws a recipe from its seed, and one of these:

    loss      one to three SIGKILLs or SIGSTOPs of processes that serve, each in a phase of the run
              that was seen (strikes.py)
    series    five of them, to see what is left behind by each
    delay     every connection is slow, or throttled: relay.py
    cut       a relay swallows what passes on some connections, one way or both, without a word
    close     a relay closes connections
    flood     strangers come to every port, some hundred a second, and say half a proof (flood.py)
    damage    a byte of the newest checkpoint changes, then the run is resumed (checkpoints.py)
    mixed     one of two ranks sees the run's folder without its newest checkpoints; needs root
    pipes, helpers, two launches
              nobody reads what the launcher says, commands leave programs behind, another launch of
              the same folder: outside.py
    long cut  nothing passes for 45 s, with rpc.peer_timeout above that (long_cut.py); needs root
    clock     the wall clock is set back by an hour, and processes start again (clock.py)
    full disk the run's folder has no room from some write on (full_disk.py); needs root

The run must end with exit code 0 within the restart limit, with the metrics and the model of a run
of that recipe without a fault, bit for bit; whoever was cut off must notice within
rpc.peer_timeout; no process, socket, descriptor or shared memory may be left.

    ./dev faults --trials 50 --seed 1000 --report build/faults
    ./dev faults --trials 3 --kind damage clock full-disk      one of each, in turn
    ./dev faults --trials 9 --kind loss cut close --scenario "grpo, episodes"
    ./dev faults --short                three trials that CI has time for
    ./dev faults --table --report build/faults
    ./dev faults --overload             many requests, slow teachers, slow readers (overload.py)

One line a trial is appended to trials.jsonl in the report's folder; the table counts all lines, so
that trials add up over days. Runs without a fault are kept there too, by recipe and program. Exit
code 1 if a trial of this call went wrong: its folder is kept.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time

import checkpoints
import clock
import full_disk
import long_cut
import outside
from flood import Flood
from launched import Descriptors, PEER_TIMEOUT, Run, SaveWatch, free_ports, kill
from relay import Cut, Relay, Weather
from scenarios import DRAWN, ROOT, SCENARIOS, write_data
from strikes import ON_THE_WIRE, PHASES, Striker, draw_strike

# How many trials of a hundred are of a kind.
KINDS = {
    "loss": 46, "series": 14, "delay": 8, "cut": 14, "close": 6, "flood": 6, "damage": 4,
    "mixed": 2,
    # Drawn by --kind alone, so that trials of a seed stay what they were.
    "pipes": 0, "helpers": 0, "two launches": 0,
    "long cut": 0, "clock": 0, "full disk": 0,
}
# The others choose their recipe themselves.
ON_ANY_RECIPE = {"loss", "series", "delay", "cut", "close", "flood"}
NEED_ROOT = {"mixed", "long cut", "full disk"}
# One trial each of what the same small run shows without a relay: a recipe of two ranks.
SHORT = {"damage": 1041, "clock": 1042, "full disk": 1043}
# A connection that is cut before it is a session has the time of the set-up (docs/transport.md).
SETUP_TIMEOUT = 15.0
# What noticing may take besides: the check of the clock, and a busy machine.
NOTICE_MARGIN = 3.0
# A flood takes a part of the machine; a run that strangers keep from meeting never serves.
LATE_FACTOR, LATE_MARGIN = 3.0, 10.0
STEADY = 0.8  # seconds of a run without which descriptors are not compared


class Bench:
    """What all trials share: the program, the folder of the report, the runs without a fault."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        (folder / "data").mkdir(parents=True, exist_ok=True)
        write_data(folder / "data", program)
        self.shim = folder / "address_shim.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", self.shim,
             ROOT / "tests/faults/address_shim.c", "-ldl"], check=True)
        self.build = hashlib.sha256(pathlib.Path(program).read_bytes()).hexdigest()[:12]
        self.references = {}

    def launch(self, folder, text, draw, settings=(), **options):
        """A run through a relay, and the relay."""
        ports = free_ports(draw)
        relay = Relay(ports, seed=draw.randrange(1 << 30), **options)
        return Run(self.program, folder, text, ports, self.shim, settings), relay

    def reference(self, name):
        """What an undisturbed run shows, alone and through a relay."""
        if name in self.references:
            return self.references[name]
        text = SCENARIOS[name][0](self.folder / "data")
        key = hashlib.sha256((text + self.build).encode()).hexdigest()[:16]
        kept = self.folder / "references" / f"{key}.json"
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(self.make_reference(name, text, key), indent=1))
        self.references[name] = json.loads(kept.read_text())
        return self.references[name]

    def make_reference(self, name, text, key):
        folder = self.folder / f"reference-{key}"
        shutil.rmtree(folder, ignore_errors=True)
        alone = Run(self.program, folder / "alone", text)
        code = alone.wait()
        if code != 0:
            sys.exit(f"{name} fails without a fault, see {alone.folder}")
        expected = alone.result()

        run, relay = self.launch(folder / "relayed", text, random.Random(key))
        saves, counting = count_saves(run)
        load = load_time(run, SCENARIOS[name][1])
        code = run.wait()
        relay.close()
        counting.join()
        if code != 0 or run.result() != expected:
            sys.exit(f"{name} through a relay: exit code {code} or other numbers, see {run.folder}")
        shutil.rmtree(folder)
        seen = collections.defaultdict(dict)
        for (victim, phase), count in relay.seen.items():
            seen[victim][phase] = count
        return {"scenario": name, "result": expected, "seconds": run.seconds, "load": load,
                "saves": len(saves), "seen": seen}


def count_saves(run):
    saves, watch = [], SaveWatch(run.run)

    def work():
        while run.running():
            saves.extend(watch.wait(0.1))
        watch.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return saves, thread


def load_time(run, roles):
    """Seconds from the first process's start until one of `roles` serves."""
    names = [f"{role}/{rank}" for role, count in roles.items() for rank in range(count)]
    began = None
    while run.running():
        if began is None and run.states():
            began = time.monotonic()
        if any(run.times_serving(name) for name in names):
            return time.monotonic() - (began or run.began)
        time.sleep(0.01)
    return 1.0


class Load(threading.Thread):
    """load_time() of a run that goes on; None where nobody serves."""

    def __init__(self, run, roles):
        super().__init__(daemon=True)
        self.run_, self.roles, self.seconds = run, roles, None
        self.start()

    def run(self):
        seconds = load_time(self.run_, self.roles)
        served = any(self.run_.times_serving(f"{role}/0") for role in self.roles)
        self.seconds = seconds if served else None


# ---- a trial ---------------------------------------------------------------------------------


def draw_weather(draw, kind, roles, reference):
    """Weather, and a few words on it."""
    def moment():
        strike = draw_strike(draw, roles, reference, draw.choice(sorted(ON_THE_WIRE)))
        while strike.wanted not in ON_THE_WIRE:
            strike = draw_strike(draw, roles, reference)
        return strike.victim, strike.wanted, strike.ordinal

    if kind == "delay":
        if draw.random() < 0.5:
            latency, jitter = draw.uniform(0.0005, 0.004), draw.uniform(0, 0.004)
            return Weather(latency=latency, jitter=jitter), (
                f"latency {latency * 1e3:.1f} ms, jitter {jitter * 1e3:.1f} ms")
        rate = 10 ** draw.uniform(5.3, 7.3)
        return Weather(rate=rate), f"{rate / 1e6:.2f} MB/s"
    path = draw.choice(["control", "data", "all"])
    if kind == "cut":
        direction = draw.choice(["up", "down", "both"])
        seconds = draw.choice([0.0, draw.uniform(0.0, 3.0)])
        cut = Cut(*moment(), path, direction, seconds)
        return Weather(cuts=[cut]), f"{path} {direction} for {seconds:.1f} s"
    closes = [(*moment(), path) for _ in range(draw.choice([1, 2, 3]))]
    return Weather(closes=closes), f"{path}, {len(closes)} times"


def trial(bench, seed, wanted_kinds, wanted_phase, wanted_scenario):
    draw = random.Random(seed)
    kind = draw.choices(list(KINDS), KINDS.values())[0]
    if wanted_kinds:
        draw, kind = random.Random(seed), wanted_kinds[seed % len(wanted_kinds)]
    if kind in checkpoints.KINDS:
        return checkpoints.trial_row(bench, seed, kind)
    for module in (outside, long_cut, clock, full_disk):
        if kind in module.KINDS:
            return module.trial(bench, seed, kind)
    names = [wanted_scenario] if wanted_scenario else DRAWN
    if wanted_phase in ("push", "commit"):
        names = [n for n in names if "generator" in SCENARIOS[n][1]]
    name = draw.choice(names)
    make, roles = SCENARIOS[name]
    reference = bench.reference(name)

    strikes, weather, words = [], Weather(), ""
    if kind in ("loss", "series"):
        number = 5 if kind == "series" else draw.choice([1, 1, 2, 3])
        strikes = [draw_strike(draw, roles, reference, wanted_phase) for _ in range(number)]
        strikes.sort(key=lambda s: PHASES.index(s.wanted) > 0)
    elif kind == "flood":
        rate = draw.choice([200, 400, 800])
        words = f"{rate} strangers a second"
    else:
        weather, words = draw_weather(draw, kind, roles, reference)

    shutil.rmtree(bench.folder / f"trial-{seed}", ignore_errors=True)
    striker = Striker(strikes)
    shared = set(os.listdir("/dev/shm"))
    run, relay = bench.launch(
        bench.folder / f"trial-{seed}", make(bench.folder / "data"), draw, weather=weather,
        on_message=striker.on_message)
    striker.begin(run)
    flood, load = (Flood(run, draw, rate), Load(run, roles)) if kind == "flood" else (None, None)
    descriptors = Descriptors(run)
    code = run.wait()
    if flood:
        flood.join()
        load.join()
    striker.join()
    descriptors.join()
    relay.close()

    row = {"seed": seed, "build": bench.build, "kind": kind, "scenario": name, "weather": words,
           "losses": [s.row() for s in strikes], "seconds": round(run.seconds, 2)}
    row["cuts"] = [cut_row(cut) for cut in weather.cuts]
    if weather.closes:
        row["closes"] = [list(close) for close in weather.closes]
    if flood:
        row["flood"] = {"connections": flood.made, "failed": flood.failed,
                        "load": load.seconds and round(load.seconds, 2)}
    row["relay_errors"] = relay.errors[:3]
    growth, compared = grown(descriptors, strikes)
    row["descriptors"] = {"compared": compared, "grown": growth}
    row["left"] = {
        "processes": run.processes(),
        "sockets": left_sockets(run),
        "shared memory": sorted(set(os.listdir("/dev/shm")) - shared)}
    row["outcome"] = outcome_of(code, run, reference, row)
    for pid in row["left"]["processes"]:
        kill(pid)
    if row["outcome"] == "same":
        shutil.rmtree(run.folder)
    else:
        row["cause"] = cause_of(run)
    return row


def cut_row(cut):
    noticed = cut.noticed() if cut.began else None
    return {"victim": cut.victim, "phase": cut.phase if cut.began else None, "path": cut.path,
            "direction": cut.direction, "seconds": round(cut.seconds, 2),
            "connections": {f"{c.caller} {c.number}": c.ended and round(c.ended - cut.began, 2)
                            for c in cut.connections},
            "noticed": None if noticed is None else round(noticed, 2)}


def left_sockets(run):
    """Those that do not go away by themselves within two seconds."""
    for _ in range(20):
        left = run.sockets()
        if not left:
            return []
        time.sleep(0.1)
    return left


def grown(descriptors, strikes):
    """What launcher and student have more of after the losses than before, and whether both could
    be compared."""
    fired = [s.fired for s in strikes if s.fired]
    if not fired:
        return {}, False
    growth, compared = {}, True
    for name in ("launcher", "student/0"):
        before = descriptors.median(name, 0, min(fired))
        after = descriptors.median(name, max(fired) + STEADY, float("inf"))
        if not before or not after:
            compared = False
            continue
        for kind in after:
            if after[kind] > before.get(kind, 0):
                growth[f"{name} {kind}"] = [before.get(kind, 0), after[kind]]
    return growth, compared


def outcome_of(code, run, reference, row):
    late = [c for c in row["cuts"] if c["noticed"] and c["noticed"] > NOTICE_MARGIN +
            (SETUP_TIMEOUT if c["phase"] == "handshake" else PEER_TIMEOUT)]
    left = [what for what, found in row["left"].items() if found]
    flood = row.get("flood")
    kept_out = flood and (not flood["load"] or
                          flood["load"] > LATE_FACTOR * reference["load"] + LATE_MARGIN)
    return (
        "hang" if code is None
        else f"exit code {code}" if code != 0
        else "other numbers" if run.result() != reference["result"]
        else "left " + ", ".join(left) if left
        else "grown" if row["descriptors"]["grown"]
        else "noticed late" if late
        else "no flood" if flood and not flood["connections"]["hello"]
        else "kept out" if kept_out
        else "same")


def cause_of(run):
    try:
        return json.loads((run.run / "status.json").read_text()).get("cause")
    except (OSError, ValueError):
        return None


# ---- the table -------------------------------------------------------------------------------


def print_counts(title, counts):
    print(title)
    for what, number in sorted(counts.items(), key=lambda item: str(item[0])):
        words = "  ".join(f"{word!s:12}" for word in what) if isinstance(what, tuple) else what
        print(f"  {words} {number:5}")


def print_table(rows):
    losses = [(row, loss) for row in rows for loss in row["losses"] if loss["phase"]]
    print_counts("losses by phase", collections.Counter(l["phase"] for _, l in losses))
    print_counts("losses by phase and signal",
                 collections.Counter((l["phase"], l["signal"]) for _, l in losses))
    print_counts("losses by recipe, role and replicas", collections.Counter(
        (row["scenario"].split(",")[0], l["victim"].split("/")[0],
         "2 replicas" if "2 replicas" in row["scenario"] else "1 replica") for row, l in losses))
    cuts = [c for row in rows for c in row["cuts"] if c["phase"]]
    print_counts("cuts by path and direction",
                 collections.Counter((c["path"], c["direction"]) for c in cuts))
    noticed = [c["noticed"] for c in cuts if c["noticed"] is not None]
    if noticed:
        middle = statistics.median(noticed)
        print(f"cuts noticed: {len(noticed)} of {len(cuts)}, after {middle:.2f} "
              f"s in the middle, {max(noticed):.2f} s at most (the others ended with the run)")
    floods = [row["flood"] for row in rows if row.get("flood")]
    if floods:
        strangers = sum(sum(flood["connections"].values()) for flood in floods)
        loads = [flood["load"] for flood in floods if flood["load"]]
        print(f"floods: {len(floods)} with {strangers} strangers; a process served after "
              f"{max(loads, default=0.0):.2f} s at most")
    print_counts("trials by kind and outcome",
                 collections.Counter((row["kind"], row["outcome"]) for row in rows))
    idle = collections.Counter(row["kind"] for row in rows if not row.get("met", True))
    if idle:
        print_counts("trials that ended before what was drawn", idle)
    compared = sum(row["descriptors"]["compared"] for row in rows)
    missed = sum(1 for row in rows for loss in row["losses"] if not loss["phase"])
    print(f"{len(rows)} trials, {len(losses)} losses ({missed} drawn but not met), "
          f"{len(cuts)} cuts; "
          f"descriptors compared in {compared}; "
          f"{sum(row['outcome'] != 'same' for row in rows)} not as they should be")


def words_on(row):
    losses = [f"{l['signal']} {l['victim']} ({l['phase']})" for l in row["losses"]]
    cuts = [f"{c['victim']} ({c['phase']}) noticed after {c['noticed']} s" for c in row["cuts"]]
    return "; ".join(losses + cuts + ([row["weather"]] if row["weather"] else []))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first trial")
    parser.add_argument("--report", type=pathlib.Path, default=ROOT / "build/faults",
                        help="folder, to which trials are added")
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), metavar="KIND",
                        type=lambda text: text.replace("-", " "),
                        help="only such trials, in turn: " + ", ".join(KINDS))
    parser.add_argument("--short", action="store_true", help="fixed trials: " + ", ".join(SHORT))
    parser.add_argument("--phase", choices=PHASES, help="losses in this phase only")
    parser.add_argument("--scenario", choices=list(SCENARIOS), metavar="NAME",
                        help="losses, delays, cuts, closes and floods of this recipe alone: " +
                        "; ".join(SCENARIOS))
    parser.add_argument("--table", action="store_true", help="prints what there is, and ends")
    parser.add_argument("--overload", action="store_true", help="many requests, slow roles")
    parser.add_argument("--program", default=os.environ.get("RETORT_BIN"), help="build/bin/retort")
    options = parser.parse_args()
    report = options.report / "trials.jsonl"
    if options.overload:
        import overload
        sys.exit(overload.main(options.program, options.report))

    wanted = [(seed, options.kind) for seed in range(options.seed, options.seed + options.trials)]
    if options.short:
        wanted = [(seed, [kind]) for kind, seed in SHORT.items()
                  if os.geteuid() == 0 or kind not in NEED_ROOT]
    if options.scenario and not options.kind:
        options.kind = sorted(ON_ANY_RECIPE)
    if options.scenario and set(options.kind) - ON_ANY_RECIPE:
        parser.error(f"--scenario is for the kinds {', '.join(sorted(ON_ANY_RECIPE))}")
    if os.geteuid() != 0 and (kinds := NEED_ROOT & set(options.kind or [])):
        parser.error(f"{', '.join(sorted(kinds))}: needs root")

    bad = 0
    if not options.table:
        bench = Bench(options.program, options.report.resolve())
        for seed, kinds in wanted:
            row = trial(bench, seed, kinds, options.phase, options.scenario)
            with open(report, "a") as file:
                file.write(json.dumps(row) + "\n")
            bad += row["outcome"] != "same"
            print(f"trial {seed}: {row['kind']}, {row['scenario']}: {words_on(row)}: "
                  f"{row['outcome']}, {row['seconds']} s", flush=True)
    print_table([json.loads(line) for line in open(report)])
    if bad:
        sys.exit(f"{bad} of {len(wanted)} trials went wrong; see {options.report}")


if __name__ == "__main__":
    main()
