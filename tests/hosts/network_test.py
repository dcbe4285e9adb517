"""Runs with launch.backend: ssh whose roles are far from each other: on two and on four whole hosts
(hosts.py), over IPv4 and IPv6, over lines that are slow, long and lossy, and that are cut for a
while. TwoHostsTest is the short form: seconds."""
import runs
import skip
from runs import PROGRAM, distill, dpo, grpo, on_hosts, result_of, served_by_two

import scenarios  # of tests/faults, where runs.py finds it

# One process on each: the student's two ranks first, then what serves.
FOUR = ("launcher", "h1", "h2", "h3", "h4")
EACH_ITS_OWN = on_hosts(1, 1, 1, 1)


class NetworkTest(runs.RunTest):
    alone = {}  # of each recipe that ran on one host: its result

    def setUp(self):
        super().setUp()
        scenarios.write_data(self.folder, PROGRAM)

    def expect_bits_of_one_host(self, network, name, text, block, serving, *settings):
        """`serving`: the processes on the hosts after the student's two."""
        if name not in self.alone:
            self.alone[name] = self.one_host(network.hosts[0], f"{name}-one", text)
        process = self.launch(network.hosts[0], name, text + block, *settings)
        self.finish(process)
        self.assertEqual(result_of(process.run), self.alone[name])
        expected = {"student/0": "h1", "student/1": "h2"}
        expected.update({role: f"h{3 + i}" for i, role in enumerate(serving)})
        self.assertEqual(self.places(process), expected)
        self.expect_nothing_left(network)


class TwoHostsTest(NetworkTest):
    def test_a_distillation_gives_the_bits_of_one_host(self):
        network = self.network(("launcher", "h1", "h2"), family=6)
        text = distill()
        expected = self.one_host(network.hosts[0], "one", text)
        process = self.launch(network.hosts[0], "two", text + on_hosts(2, 1))
        self.finish(process)
        self.assertEqual(result_of(process.run), expected)
        self.assertEqual(self.places(process)["teacher/0"], "h2")
        self.expect_nothing_left(network)


class FourHostsTest(NetworkTest):
    """Teachers, reference, generator and each rank of the student on hosts of their own."""

    def compare(self, network):
        def compared(name, text, *serving):
            self.expect_bits_of_one_host(network, name, text, EACH_ITS_OWN, serving)
        compared("distill", served_by_two(distill()), "teacher/0", "teacher/1")
        compared("dpo", served_by_two(dpo(self.folder)), "reference/0", "reference/1")
        compared("grpo", grpo(self.folder, reference=True), "generator/0", "reference/0")

    def test_over_ipv4(self):
        self.compare(self.network(FOUR))

    def test_over_ipv6(self):
        self.compare(self.network(FOUR, family=6))

    def test_over_lines_that_are_slow_long_and_lossy(self):
        network = self.network(FOUR)
        for host in network.hosts:
            host.limit("20mbit", delay=0.005, loss=0.01)
        self.compare(network)


if __name__ == "__main__":
    skip.main()
