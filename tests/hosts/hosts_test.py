"""The hosts that the other tests of this folder run on (hosts.py)."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import hosts
import skip

SSH = ["ssh", "-o", "BatchMode=yes", "-i", hosts.IDENTITY]
DIAL = "import socket, sys; socket.create_connection((sys.argv[1], 22), float(sys.argv[2]))"
# Brings hosts up, says which processes they are, and stands still.
OWNER = """
import hosts, time
with hosts.Network(["a", "b"]) as network:
    print(*[host.init for host in network.hosts], network.switch.pid, flush=True)
    time.sleep(600)
"""


def reaches(host, address, seconds):
    """Whether it gets a connection within that time."""
    argv = host.enter([sys.executable, "-c", DIAL, address, str(seconds)])
    return subprocess.run(argv, capture_output=True).returncode == 0


class HostsTest(unittest.TestCase):
    def test_hosts_are_apart_and_meet_by_ssh(self):
        with hosts.Network(["h1", "h2"], family=6) as network:
            h1, h2 = network.hosts
            h1.run(["touch", "/tmp/mine", "/dev/shm/mine"])
            self.assertEqual(h1.leftovers(), ["file /tmp/mine", "file /dev/shm/mine"])
            self.assertEqual(h2.leftovers(), [])

            for name in ("h2", h2.ipv4, h2.ipv6):
                self.assertEqual(h1.run([*SSH, name, "hostname"]), "h2\n")
            seen = h1.run([*SSH, "h2", "echo $SSH_CONNECTION; ls -d /proc/[0-9]*"])
            self.assertTrue(seen.startswith(h1.ipv6))
            self.assertLess(len(seen.splitlines()), 12, "processes of others are seen")

    def test_a_cut_is_silent_and_heals(self):
        with hosts.Network(["h1", "h2"]) as network:
            h1, h2 = network.hosts
            for address in (h2.ipv4, h2.ipv6):
                self.assertTrue(reaches(h1, address, 30))
            h2.cut()
            for address in (h2.ipv4, h2.ipv6):
                self.assertFalse(reaches(h1, address, 0.5))
            h2.attach()
            for address in (h2.ipv4, h2.ipv6):
                self.assertTrue(reaches(h1, address, 30))

    def test_a_rate_is_kept_and_bytes_are_counted(self):
        with hosts.Network(["h1", "h2"]) as network:
            h1, h2 = network.hosts
            h2.limit("20mbit")
            before, began = h2.bytes()[1], time.monotonic()
            h1.run(["sh", "-c", f"head -c 2000000 /dev/zero | {' '.join(SSH)} h2 'cat >/dev/null'"])
            self.assertGreater(time.monotonic() - began, 0.6)
            received = h2.bytes()[1] - before
            self.assertGreater(received, 2_000_000)
            self.assertLess(received, 2_400_000)

    def test_a_long_bad_line_delays_and_loses_and_can_be_cut(self):
        with hosts.Network(["h1", "h2"]) as network:
            h1, h2 = network.hosts
            h2.limit(delay=0.1, loss=0.1)
            for address in (h2.ipv4, h2.ipv6):
                began = time.monotonic()
                self.assertTrue(reaches(h1, address, 30))
                self.assertGreaterEqual(time.monotonic() - began, 0.2)
            h2.cut()
            self.assertFalse(reaches(h1, h2.ipv4, 1))
            h2.attach()
            h1.run(["sh", "-c", f"head -c 500000 /dev/zero | {' '.join(SSH)} h2 'cat >/dev/null'"])
            self.assertGreater(h1.resent(), 0)

    def test_nothing_outlives_an_owner_that_is_killed(self):
        folder = str(pathlib.Path(hosts.__file__).parent)
        owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True,
                                 env=dict(os.environ, PYTHONPATH=folder))
        pids = owner.stdout.readline().split()
        self.assertEqual(len(pids), 3)
        for pid in pids:
            self.assertTrue(os.path.exists(f"/proc/{pid}"))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        for pid in pids:
            hosts.wait_until(lambda: not os.path.exists(f"/proc/{pid}"), f"{pid} ends")


if __name__ == "__main__":
    skip.main()
