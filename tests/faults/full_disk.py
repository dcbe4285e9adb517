"""A run's folder on a disk that has no room from some write of the run on. It takes mounts: root.

    full disk  the folder is a tmpfs. As "pages" or "inodes" it is too small from the start, by a
               number between one and what the run needs; otherwise it is shrunk to what is used at
               a write that was seen (inotify): of a checkpoint, metrics.jsonl, TensorBoard's
               events, status.json, logs or samples. In a third of the trials there is room again
               after a while.

The run goes on to the numbers of an undisturbed one, or ends with an error that says that the disk
is full. The last checkpoint that was complete stays, and with room the run goes on from it
(--resume; --overwrite where it has not begun) to the same model. A row of metrics.jsonl that is
missing was told, and none is where room came back in time. status.json, whose room is reserved once
it was written, says how the run ended.
"""
import collections
import ctypes
import errno
import json
import os
import random
import re
import select
import shutil
import struct
import threading
import time

from checkpoints import sft
from launched import Run, SETTINGS, kill, processes_of, rows_of
from scenarios import grpo

KINDS = ("full disk",)
PAGE = 4096
ROOM = 1 << 30  # bytes of a disk that is large enough
INODES = 100000
NAMED = re.compile(r"free space on this disk|No space left on device|disk is full|disk full")
LOST = re.compile(r"were not written|wait(s|ed)? for room|rows wait")
# Of a write: the folder in which it is seen, and how the name begins.
WRITES = {
    "checkpoints": ("", "checkpoint-"),
    "metrics": ("", "metrics.jsonl"),
    "status": ("", "status.json"),
    "tensorboard": ("tensorboard", ""),
    "logs": ("logs", ""),
    "samples": ("samples", ""),
}
MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
MS_REMOUNT, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20, 0x4000, 0x40000, 0x2
CLONE_NEWNS = 0x20000
LIBC = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Disk:
    """A tmpfs at `folder`, seen by this process and its children alone."""

    apart = False

    def __init__(self, folder, pages=ROOM // PAGE, inodes=INODES):
        if not Disk.apart:
            call("unshare", CLONE_NEWNS)
            call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
            Disk.apart = True
        folder.mkdir(parents=True)
        self.folder = folder
        self.mount(0, pages, inodes)

    def mount(self, flags, pages, inodes):
        call("mount", b"retort", bytes(self.folder), b"tmpfs", flags,
             f"size={pages * PAGE},nr_inodes={inodes}".encode())

    def used(self):
        """Pages and inodes."""
        found = os.statvfs(self.folder)
        return found.f_blocks - found.f_bfree, found.f_files - found.f_ffree

    def shrink(self):
        """To what is used, so that a page is there only once another is given back."""
        while True:
            try:
                return self.mount(MS_REMOUNT, max(1, self.used()[0]), INODES)
            except OSError as error:  # more was written meanwhile
                if error.errno != errno.EINVAL:
                    raise

    def grow(self):
        self.mount(MS_REMOUNT, ROOM // PAGE, INODES)

    def close(self):
        call("umount2", bytes(self.folder), MNT_DETACH)


class Watch(threading.Thread):
    """Counts the writes of a run by kind, and what its disk holds at most; calls `act` at the
    `ordinal`th of `kind`, after `delay`. `complete`: the steps of the checkpoints that were there
    under their own names."""

    def __init__(self, run, disk, kind=None, ordinal=0, delay=0.0, act=None):
        super().__init__(daemon=True)
        self.run_, self.disk = run, disk
        self.kind, self.ordinal, self.delay, self.act = kind, ordinal, delay, act
        self.counts, self.complete = collections.Counter(), set()
        self.pages = self.inodes = 0
        self.acted = None
        self.fd = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.folders = {}  # watch -> folder
        self.start()

    def run(self):
        while self.run_.running():
            for name in {folder for folder, _ in WRITES.values()} - set(self.folders.values()):
                made = LIBC.inotify_add_watch(self.fd, bytes(self.disk.folder / name),
                                              MODIFY | MOVED_TO | CREATE)
                if made >= 0:
                    self.folders[made] = name
            if select.select([self.fd], [], [], 0.005)[0]:
                self.read()
            pages, inodes = self.disk.used()
            self.pages, self.inodes = max(self.pages, pages), max(self.inodes, inodes)
        os.close(self.fd)

    def read(self):
        events = os.read(self.fd, 1 << 16)
        while events:
            watch, mask, _, length = struct.unpack_from("iIII", events)
            name = events[16:16 + length].rstrip(b"\0").decode()
            events = events[16 + length:]
            self.see(self.folders.get(watch), mask, name)

    def see(self, folder, mask, name):
        if folder == "" and mask & MOVED_TO and re.fullmatch(r"checkpoint-\d+", name):
            self.complete.add(int(name[11:]))
        for kind, (where, begin) in WRITES.items():
            if where != folder or not name.startswith(begin):
                continue
            if kind == "checkpoints" and not mask & CREATE:
                continue
            self.counts[kind] += 1
            if kind == self.kind and self.counts[kind] >= self.ordinal and self.acted is None:
                time.sleep(self.delay)
                self.act()
                self.acted = time.monotonic()


# name: the recipe, and settings
RECIPES = {
    "sft": (lambda data: sft("one"), []),
    "sft, tp 2": (lambda data: sft("tp"), []),
    "sft, pp 2": (lambda data: sft("pp"), []),
    "grpo": (grpo(), [*SETTINGS, "train.max_steps=24", "generation.save_samples=true"]),
}


def start(bench, folder, settings):
    """Of the recipe that `folder` has."""
    return Run(bench.program, folder, None, settings=settings, timeouts=())


def prepare(bench, folder, name, **size):
    shutil.rmtree(folder, ignore_errors=True)
    disk = Disk(folder / "run", **size)
    text = RECIPES[name][0](bench.folder / "data")
    (folder / "recipe.yaml").write_text(text + f"output_dir: {folder / 'run'}\n")
    return disk


def reference(bench, name, settings):
    """What the run without a fault shows, writes and needs."""
    key = f"disk {name} {' '.join(settings)}"
    if key not in bench.references:
        folder = bench.folder / "reference-disk"
        disk = prepare(bench, folder, name)
        run = start(bench, folder, settings)
        watch = Watch(run, disk)
        code = run.wait()
        watch.join()
        if code != 0:
            keep(disk)
            raise SystemExit(f"{name} fails without a fault, see {folder}")
        bench.references[key] = {
            "rows": rows_of(run.run), "model": model_of(run.run),
            "counts": dict(watch.counts), "pages": watch.pages, "inodes": watch.inodes}
        disk.close()
        shutil.rmtree(folder)
    return bench.references[key]


def keep(disk):
    """What is on the disk stays when it goes."""
    kept = disk.folder.with_name("kept")
    shutil.copytree(disk.folder, kept, symlinks=True)
    disk.close()


def model_of(run):
    return (run / "final/model.safetensors").read_bytes()


def checkpoints_of(run):
    return {int(path.name[11:]) for path in run.iterdir()
            if re.fullmatch(r"checkpoint-\d+", path.name)}


def said(run):
    text = (run.folder / "output.txt").read_text(errors="replace")
    for log in (run.run / "logs").glob("*.log"):
        text += log.read_text(errors="replace")
    return text


def judge(run, expected, whole=False):
    """Of a run that ended with exit code 0. `whole`: no row may be missing."""
    if model_of(run.run) != expected["model"]:
        return "other numbers"
    rows = rows_of(run.run)
    if collections.Counter(rows) - collections.Counter(expected["rows"]):
        return "other numbers"
    if rows != expected["rows"] and (whole or not LOST.search(said(run))):
        return "lost rows" if whole else "lost rows, not told"
    return "same"


class Returns(threading.Thread):
    """Room again, some seconds after the disk was full."""

    def __init__(self, watch, disk, seconds):
        super().__init__(daemon=True)
        self.watch, self.disk, self.seconds = watch, disk, seconds
        self.room = False
        self.start()

    def run(self):
        began = None if self.watch.kind else time.monotonic()
        while self.watch.is_alive():
            began = began or self.watch.acted
            if began and time.monotonic() - began > self.seconds:
                self.disk.grow()
                self.room = self.watch.is_alive()
                return
            time.sleep(0.005)


def ended_in_words(run):
    """Whether status.json says that the run is over."""
    try:
        return json.loads((run.run / "status.json").read_text())["state"] in ("done", "failed")
    except (OSError, ValueError, KeyError):
        return False


def draw_fault(draw, expected):
    """The size of the disk, and at which write it is shrunk: kind, ordinal, delay."""
    way = draw.choice(["pages", "inodes"] + sorted(expected["counts"]))
    part = draw.random()
    if way == "pages":  # evenly, or as many below a tenth as above it
        many = expected["pages"]
        return {"pages": max(1, int(draw.choice([many * part, many ** part])))}, None
    if way == "inodes":
        return {"inodes": 2 + int(part * (expected["inodes"] - 1))}, None
    ordinal = 1 + int(0.9 * part * expected["counts"][way])
    return {}, (way, ordinal, draw.choice([0.0, draw.uniform(0.0, 0.02)]))


def resume(bench, folder, settings, disk, expected, complete):
    """With room: the outcome, and words."""
    disk.grow()
    there = checkpoints_of(disk.folder)
    if max(there, default=0) < max(complete, default=0):
        return f"lost checkpoint {max(complete)}", ""
    before = len((folder / "output.txt").read_text(errors="replace"))
    run = start(bench, folder, settings + ["--resume"])
    code = run.wait()
    words = f"resumed from {max(there, default='nothing')}"
    if code == 2 and not there:  # it had not begun
        run = start(bench, folder, settings + ["--overwrite"])
        code, words = run.wait(), "written anew"
    text = (folder / "output.txt").read_text(errors="replace")[before:]
    if "is damaged" in text:
        return "damaged checkpoint", words
    if code != 0:
        return "hang when resumed" if code is None else f"exit code {code} when resumed", words
    return judge(run, expected), words


def attempt(bench, draw, folder, name, settings, expected):
    """A run on a disk that fills: its disk, whether it met that, the outcome and words."""
    size, at = draw_fault(draw, expected)
    more = ["train.on_save_error=continue"] if draw.random() < 0.5 else []
    more += ["train.async_save=true"] if draw.random() < 0.25 else []
    back = draw.uniform(0.05, 2.0) if draw.random() < 0.33 else 0.0
    words = ", ".join(f"{count} {what}" for what, count in size.items()) or f"{at[0]} {at[1]}"
    words = ", ".join([words, *more] + ([f"room after {back:.2f} s"] if back else []))

    disk = prepare(bench, folder, name, **size)
    run = start(bench, folder, settings + more)
    reserved = []

    def shrink():
        reserved.append((disk.folder / "status.json.spare2").exists())
        disk.shrink()

    watch = Watch(run, disk, *(at or ()), act=shrink)
    returns = Returns(watch, disk, back) if back else None
    code = run.wait()
    watch.join()
    if returns:
        returns.join()
    met, words = not at or watch.acted is not None, f"{words}: exit code {code}"
    if code is None:
        return disk, met, "hang", words
    if any(reserved) and not ended_in_words(run):
        return disk, met, "status goes on", words
    if code == 0:
        return disk, met, judge(run, expected, whole=bool(returns and returns.room)), words
    if code != 3:
        return disk, met, f"exit code {code}", words
    # On the screen, beside the last lines of the log, which is on the same disk.
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    named = [line for line in lines if NAMED.search(line) and "goes on" not in line
             and not line.startswith("  | ")]
    if not named:
        return disk, met, "not named", words
    error = re.split("error: |code 3: ", named[-1])[-1].replace(str(folder / "run"), "")
    words += f" ({error[:90]})"
    outcome, how = resume(bench, folder, settings + more, disk, expected, watch.complete)
    return disk, met, outcome, f"{words}, {how}" if how else words


def trial(bench, seed, kind):
    """A row as run_faults.py has it."""
    draw, began = random.Random(f"{seed} {kind}"), time.monotonic()
    name, folder = draw.choice(sorted(RECIPES)), bench.folder / f"trial-{seed}"
    limit = draw.choice([0, 2])
    settings = RECIPES[name][1] + [f"train.save_total_limit={limit}"]
    expected = reference(bench, name, settings)
    disk, met, outcome, words = attempt(bench, draw, folder, name, settings, expected)

    left = processes_of(folder)
    for pid in left:
        kill(pid)
    if outcome == "same" and left:
        outcome = "left processes"
    if outcome == "same":
        disk.close()
        shutil.rmtree(folder)
    else:
        keep(disk)
    return {"seed": seed, "build": bench.build, "kind": kind, "scenario": name,
            "weather": words + (f", keeps {limit}" if limit else ""), "losses": [], "cuts": [],
            "met": met, "seconds": round(time.monotonic() - began, 2),
            "descriptors": {"compared": False, "grown": {}}, "outcome": outcome,
            "left": {"processes": left}}
