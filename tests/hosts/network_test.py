"""Runs with launch.backend: ssh whose roles are far from each other: on two and on four whole hosts
(hosts.py), over IPv4 and IPv6, over lines that are slow, long and lossy, and that are cut for a
while. TwoHostsTest is the short form: seconds."""
import json
import time

import hosts
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

    def expect_bits(self, network, name, text, block, *settings, meanwhile=lambda process: None):
        """A run on hosts gives what the same layout gives on one; `meanwhile` strikes it."""
        if name not in self.alone:
            self.alone[name] = self.one_host(network.hosts[0], f"{name}-one", text)
        process = self.launch(network.hosts[0], name, text + block, *settings)
        meanwhile(process)
        self.finish(process)
        self.assertEqual(result_of(process.run), self.alone[name])
        self.expect_nothing_left(network)
        return process


class TwoHostsTest(NetworkTest):
    def test_a_distillation_gives_the_bits_of_one_host(self):
        network = self.network(("launcher", "h1", "h2"), family=6)
        process = self.expect_bits(network, "two", distill(), on_hosts(2, 1))
        self.assertEqual(self.places(process),
                         {"student/0": "h1", "student/1": "h1", "teacher/0": "h2"})


class FourHostsTest(NetworkTest):
    """Teachers, reference, generator and each rank of the student on hosts of their own."""

    def compare(self, network):
        def compared(name, text, third, fourth):
            process = self.expect_bits(network, name, text, EACH_ITS_OWN)
            self.assertEqual(self.places(process), {"student/0": "h1", "student/1": "h2",
                                                    third: "h3", fourth: "h4"})
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


class BytesTest(NetworkTest):
    """What crosses each host's line, beside what docs and plan say: h1 and h2 (and h3) have a rank
    of the student, the others a role that serves. Hosts do not share memory: what a rank would
    copy directly from another's on one host must be here."""

    # Large, for what starts and ends a run to be little beside what a step sends.
    MODELS = {"student": ("192", "2"), "teacher": ("512", "1")}
    VOCABULARY = 64  # of the tokenizer that they take over
    TLS = 1 + 22 / 16384  # header, kind and seal of a record, RFC 8446 section 5
    STEPS = 6

    def setUp(self):
        super().setUp()
        for name, (size, layers) in self.MODELS.items():
            hosts.checked([PROGRAM, "model", "init", "--tokenizer", scenarios.GOLDENS / "qwen3",
                           "--hidden-size", size, "--num-hidden-layers", layers,
                           "--output", self.folder / name])

    def measure(self, network, name, text):
        """(sent, received) of each host but the first, without headers."""
        before = [host.carried() for host in network.hosts]
        process = self.launch(network.hosts[0], name, text)
        self.finish(process)
        self.expect_nothing_left(network)
        counts = [host.carried() for host in network.hosts]
        return process, [(s - t, r - u) for (s, r), (t, u) in zip(counts, before)][1:]

    def plan(self, process):
        file = process.run.with_suffix(".yaml")
        return json.loads(hosts.checked([PROGRAM, "plan", file, "--json"]))

    def compare(self, network, measured, expected):
        """Each direction by the formula; None: no formula, and nothing large. What TCP sends again
        may come on top, on a line that a busy machine does not read in time."""
        resent = [host.resent() for host in network.hosts][1:]
        largest = max(n for pair in expected for n in pair if n)
        for i, (counts, formulas) in enumerate(zip(measured, expected)):
            again = {"sent": resent[i], "received": sum(resent) - resent[i]}
            for way, count, formula in zip(again, counts, formulas):
                off = f", {100 * (count / formula - 1):+.2f} %" if formula else ""
                print(f"h{i + 1} {way}: {count}, formula {formula or 0:.0f}{off}; again: at most "
                      f"{again[way]}", flush=True)
                if formula:
                    self.assertGreater(count, 0.95 * formula)
                self.assertLess(count - again[way], 1.05 * formula if formula else 0.05 * largest)

    def test_gradients_of_three_ranks_and_payloads_of_a_teacher(self):
        length, rows = 128, 4
        with open(self.folder / "rows.jsonl", "w") as file:
            for i in range(60):
                ids = [(7 * i + 5 * k) % 60 for k in range(length)]
                file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
        text = runs.trained_by(3, scenarios.recipe(
            "distill", {"teacher": {"model": self.folder / "teacher"}}, self.folder / "rows.jsonl",
            self.STEPS, "distill: {teachers: [{role: teacher}], payload: hidden_states}\n",
            student=self.folder / "student", batch=rows)).replace(
                "max_length: 64", f"max_length: {length}")
        network = self.network(FOUR)
        process, measured = self.measure(network, "distill", text + EACH_ITS_OWN)
        plan = self.plan(process)

        # A ring of n passes 2 (n - 1) / n of all gradients through each line (docs/parallel.md).
        gradients = self.STEPS * plan["roles"][0]["gradient_bytes_per_rank"] * 2 * 2 / 3
        # The first token of a row has nothing before it that could predict it.
        tokens = self.STEPS * rows * (length - 1)
        hidden = plan["links"][0]["bytes_per_target_token"]
        # Each rank fetches the head once: as many bytes for each id as a token's states have.
        payload = self.TLS * (tokens + self.VOCABULARY) * hidden
        self.compare(network, measured,
                     3 * [(gradients, gradients + payload)] + [(3 * payload, None)])

    def test_gradients_of_two_ranks_and_pushes_to_a_generator(self):
        text = scenarios.grpo(more="beta: 0.05")(self.folder).replace(
            "max_steps: 120", f"max_steps: {self.STEPS}").replace(
            str(scenarios.GOLDENS / "qwen3"), str(self.folder / "student")).replace(
            "data:\n", scenarios.role("reference", self.folder / "student") + "data:\n", 1)
        network = self.network(FOUR, family=6)
        process, measured = self.measure(network, "grpo",
                                         runs.trained_by(2, text) + EACH_ITS_OWN)
        plan = self.plan(process)

        gradients = self.STEPS * plan["roles"][0]["gradient_bytes_per_rank"]
        # The first rank pushes all weights, once a version.
        rows = (process.run / "metrics.jsonl").read_text().splitlines()
        versions = max(json.loads(row).get("weight_version", 0) for row in rows)
        self.assertGreaterEqual(versions, self.STEPS - 1)
        pushed = self.TLS * versions * plan["roles"][1]["pushed_weights_bytes_per_rank"]
        self.compare(network, measured, [(gradients + pushed, gradients), (gradients, gradients),
                                         (None, pushed), (None, None)])


class CutTest(NetworkTest):
    """A host that is cut off for a while: TCP tries again at intervals that double, so a path is
    back after at most twice the time that it was cut. rpc.peer_timeout is above that."""

    STEPS = 300

    def survives(self, index, seconds, timeout):
        network = self.network(FOUR, patience=10 * seconds)

        def cut(process):
            self.wait_for_steps(process, 3)
            network.hosts[index].cut()
            time.sleep(seconds)
            self.assertLess(self.steps(process), self.STEPS, "it was over before the cut mattered")
            self.assertTrue(process.running(), process.text())
            network.hosts[index].attach()
        process = self.expect_bits(network, "long", served_by_two(distill(self.STEPS)),
                                   EACH_ITS_OWN, f"rpc.peer_timeout={timeout}", meanwhile=cut)
        # Nobody was lost and started again: the same processes went on.
        self.assertNotIn("silent", process.text())

    def test_a_teacher_is_cut_off_for_ten_seconds(self):
        self.survives(3, 10, "40s")

    def test_a_rank_of_the_student_is_cut_off_for_a_minute(self):
        self.survives(2, 60, "150s")


if __name__ == "__main__":
    skip.main()
