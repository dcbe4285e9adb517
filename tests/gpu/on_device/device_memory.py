"""Memory of the device that ended processes still hold: for seconds, where it was much."""

import subprocess
import time

IDLE = 1024  # MiB, which counts as nothing
LONGEST = 15  # seconds that are waited


def held():
    """MiB by process id; nothing where nvidia-smi tells nothing."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def wait_until_free(others, deadline):
    """MiB that are held by processes not of `others` when they are few, or the wait is over."""
    deadline = min(deadline, time.monotonic() + LONGEST)
    while True:
        mib = sum(m for pid, m in held().items() if pid not in others)
        if mib <= IDLE or time.monotonic() >= deadline:
            return mib
        time.sleep(0.2)
