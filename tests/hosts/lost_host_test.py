"""Runs with launch.backend: ssh that lose a host for good, or for too long: what served there goes
on elsewhere, or the rest without it; what trained goes on by itself from the last checkpoint."""
import json

import hosts
import runs
import skip
from runs import distill, grpo, on_hosts, result_of, served_by_two

# A host that is gone is found within seconds; what it took is saved often.
SETTINGS = ("rpc.peer_timeout=4s", "rpc.heartbeat_interval=200ms", "train.save_steps=3",
            "launch.stop_timeout=20s")
STEPS = 300


class LostHostTest(runs.RunTest):
    def begin(self, text, slots, *settings):
        """A run on a network of its own, some steps after its start; what it gives undisturbed."""
        names = [f"h{i + 1}" for i in range(len(slots))]
        self.net = self.network(["launcher", *names])
        launcher = self.net.hosts[0]
        expected = self.one_host(launcher, "one", text)
        self.whole = self.folder / "one"
        run = self.launch(launcher, "run", text + on_hosts(*slots), *SETTINGS, *settings)
        self.wait_for_steps(run, 8)
        return run, expected

    def lose(self, run, name):
        host = next(h for h in self.net.hosts if h.name == name)
        host.gone()
        self.assertLess(self.steps(run), STEPS, "it was over before the loss could matter")
        return host

    def numbers(self, run):
        """(step, loss) of each line of a run's folder."""
        lines = (run / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return [(row["step"], row["loss"]) for row in rows if "loss" in row]

    def served_elsewhere(self, text, role):
        run, expected = self.begin(text, (2, 1, 1))
        self.assertEqual(self.places(run)[f"{role}/0"], "h2")
        gone = self.lose(run, "h2")
        self.finish(run)
        self.assertEqual(result_of(run.run), expected)
        self.assertIn("host h2 is silent for 4s and was started again", run.text())
        self.assertEqual(self.places(run)[f"{role}/0"], "h3")
        self.expect_nothing_left(self.net, gone=[gone])

    def test_a_teacher_goes_on_in_a_spare_slot(self):
        self.served_elsewhere(distill(STEPS), "teacher")

    def test_a_generator_goes_on_in_a_spare_slot(self):
        self.served_elsewhere(grpo(self.folder, STEPS), "generator")

    def served_by_the_rest(self, text, role):
        run, expected = self.begin(served_by_two(text), (2, 1, 1))
        self.assertEqual(self.places(run)[f"{role}/1"], "h3")
        gone = self.lose(run, "h3")
        self.finish(run)
        self.assertEqual(result_of(run.run), expected)
        self.assertIn(f"{role} replica 1 is given up", run.text())
        self.assertIn("h3 none, being lost", run.text())
        self.expect_nothing_left(self.net, gone=[gone])

    def test_without_a_spare_slot_the_other_teacher_goes_on(self):
        self.served_by_the_rest(distill(STEPS), "teacher")

    def test_without_a_spare_slot_the_other_generator_goes_on(self):
        self.served_by_the_rest(grpo(self.folder, STEPS), "generator")

    def test_what_trained_there_goes_on_elsewhere_from_the_last_checkpoint(self):
        run, expected = self.begin(distill(STEPS), (1, 2, 2), "launch.max_restarts=1")
        self.assertEqual(self.places(run)["student/1"], "h2")
        gone = self.lose(run, "h2")
        self.finish(run)
        self.assertIn("student/1", run.text())
        self.assertIn("host h2 is silent for 4s", run.text())
        self.assertIn("the run goes on without it", run.text())
        self.assertEqual(self.places(run), {"student/0": "h1", "student/1": "h3",
                                            "teacher/0": "h3"})
        self.assertEqual(result_of(run.run), expected)
        self.expect_nothing_left(self.net, gone=[gone])

    def test_with_fewer_replicas_where_no_slot_is_left(self):
        run, _ = self.begin(distill(STEPS), (1, 1, 1), "launch.max_restarts=1", "launch.min_dp=1")
        self.assertEqual(self.places(run)["student/1"], "h2")
        gone = self.lose(run, "h2")
        self.finish(run)
        self.assertIn("roles.student.world.dp is 1 instead of 2 (launch.min_dp)", run.text())
        self.assertEqual(self.places(run), {"student/0": "h1", "teacher/0": "h3"})
        # Each step once, from the same rows: its loss is that of two replicas but for rounding,
        # which Adam makes larger from step to step.
        expected = self.numbers(self.whole)
        numbers = self.numbers(run.run)
        self.assertEqual([step for step, _ in numbers], [step for step, _ in expected])
        for (step, mine), (_, theirs) in zip(numbers, expected):
            self.assertLess(abs(mine - theirs), 0.02 * theirs, f"step {step}")
        self.expect_nothing_left(self.net, gone=[gone])

    def test_without_room_the_run_ends_and_says_what_would_help(self):
        run, _ = self.begin(distill(STEPS), (1, 1, 1), "launch.max_restarts=1")
        gone = self.lose(run, "h2")
        self.finish(run, 3)
        self.assertIn("the run cannot go on without the lost hosts: roles.teacher does not fit",
                      run.text())
        self.assertIn("launch.min_dp", run.text())
        self.expect_nothing_left(self.net, gone=[gone])

    def test_a_world_that_is_cut_in_two_is_named_and_goes_on_when_it_is_whole(self):
        run, expected = self.begin(distill(STEPS), (1, 2), "launch.max_restarts=1")
        h2 = self.net.hosts[2]
        h2.cut()
        hosts.wait_until(lambda: "goes on from its last checkpoint" in run.text(),
                         "the cut is seen", runs.LIMIT)
        self.assertIn("host h2 is silent for 4s", run.text())
        h2.attach()
        self.finish(run)
        self.assertEqual(result_of(run.run), expected)
        self.assertEqual(self.places(run)["student/1"], "h2")
        self.expect_nothing_left(self.net)


if __name__ == "__main__":
    skip.main()
