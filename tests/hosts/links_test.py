"""`retort check --links` on whole hosts (hosts.py): a rate that is known is what it finds, between
the hosts that the recipe's roles are on, and nothing is left."""
import re
import signal
import subprocess

import hosts
import runs
import skip
from runs import distill, grpo
from ssh_test import ON_HOSTS

ROW = re.compile(r"  (\S+) +(\S+) +(on \*|off) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)")
# 1 MiB an answer.
LARGE = ("distill.payload=full", "train.per_device_train_batch_size=64")

# Counts the bytes of an interface's packets, those with a run of zeros and the others, until it is
# asked to end.
COUNT = """import signal, socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind((sys.argv[1], 0))
seen = [0, 0]
def end(*_):
    print(*seen, flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    packet = link.recv(1 << 17)
    seen[bytes(256) not in packet] += len(packet)"""


class LinksTest(runs.RunTest):
    def measure(self, network, text, *settings):
        """{(from, to, encryption): [p50 ms, p99 ms, MB/s, MiB a step, seconds a step]}"""
        process = self.start(network.hosts[0], "check", "run", text, "--links", *settings)
        self.finish(process)
        print(process.text(), flush=True)
        return {row[:3]: [float(number) for number in row[3:]]
                for row in ROW.findall(process.text())}

    def test_a_known_rate_is_found_between_hosts(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        text = distill() + ON_HOSTS
        free = self.measure(network, text, *LARGE)
        # The student has a rank on each host, the teacher is on h2.
        self.assertEqual(sorted(free), [("h2", "h1", "off"), ("h2", "h1", "on *"),
                                        ("h2", "h2", "off"), ("h2", "h2", "on *")])
        h2.limit("80mbit")
        count = hosts.Process(h2, ["python3", "-c", COUNT, "eth0"], self.folder / "count.out")
        hosts.wait_until(lambda: count.text() == "up\n", "packets are counted")
        slow = self.measure(network, text, *LARGE)
        count.signal(signal.SIGTERM)
        self.finish(count)
        # What is sent are zeros: six messages or more that everybody can read, and as many that
        # nobody can.
        readable, others = map(int, count.text().split()[1:])
        self.assertGreater(min(readable, others), 4 << 20)
        for encryption in ("off", "on *"):
            rate = slow["h2", "h1", encryption][2]
            self.assertGreater(rate, 5)
            self.assertLess(rate, 12.5, "that is more than the link has")
            self.assertLess(rate, free["h2", "h1", encryption][2])
            # Half of the student's ranks are on h1.
            p50, p99, rate, mib, seconds = slow["h2", "h1", encryption]
            self.assertAlmostEqual(seconds, mib * 1.048576 / rate, delta=0.02 * seconds + 0.001)
        self.assertFalse((self.folder / "run").exists())
        self.expect_nothing_left(network)

    def test_weights_go_the_other_way(self):
        network = self.network(family=6)
        found = self.measure(network, grpo(self.folder) + ON_HOSTS)
        self.assertIn(("h1", "h2", "on *"), found)
        self.assertGreater(found["h1", "h2", "on *"][2], 0)
        self.expect_nothing_left(network)

    def test_payload_and_push_with_encryption_and_without_in_one_run(self):
        """What docs/hosts.md has of it is printed here."""
        network = self.network()
        model = self.folder / "large"
        subprocess.run(
            [runs.PROGRAM, "model", "init", "--tokenizer", runs.scenarios.GOLDENS / "qwen3",
             "--hidden-size", "512", "--num-attention-heads", "8", "--output", model],
            check=True, stdout=subprocess.DEVNULL)
        text = runs.scenarios.on_policy_distill()(self.folder).replace(
            str(runs.scenarios.GOLDENS / "qwen3"), str(model))
        self.assertEqual(text.count(str(model)), 2)
        # The student on one host, what serves it on the other.
        found = self.measure(network, text + ON_HOSTS, "distill.payload=full",
                             "train.per_device_train_batch_size=512")
        ways = {(one[0], one[1]) for one in found}
        self.assertEqual(ways, {("h2", "h1"), ("h1", "h2")})
        for (_, _, encryption), numbers in found.items():
            self.assertGreater(numbers[2], 0, encryption)
        # Answers of 8 MiB, and all weights.
        self.assertGreater(found["h1", "h2", "on *"][3], 40)
        self.expect_nothing_left(network)

    def test_nothing_is_left_of_one_that_is_stopped_or_killed(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        text = distill() + ON_HOSTS
        for number, code, gone in ((signal.SIGINT, 1, []), (signal.SIGKILL, 137, [launcher])):
            process = self.start(launcher, "check", "run", text, "--links", *LARGE)
            hosts.wait_until(
                lambda: not process.running() or
                any(one.rstrip().endswith(" link") for one in h1.processes().values()),
                "a measurement", runs.LIMIT)
            process.signal(number)
            self.finish(process, code)
            # Who is killed leaves its temporary folder; the other hosts have none.
            self.expect_nothing_left(network, gone)

    def test_a_host_that_cannot_be_reached_ends_it_by_name(self):
        network = self.network()
        text = distill() + ON_HOSTS.replace("h2", "h7")
        process = self.start(network.hosts[0], "check", "run", text, "--links")
        self.finish(process, 3)
        self.assertIn("host h7 could not be reached", process.text())
        self.assertFalse((self.folder / "run").exists())
        self.expect_nothing_left(network)


if __name__ == "__main__":
    skip.main()
