"""Runs with launch.backend: ssh whose launcher is killed, or whose launcher's host is gone: they go
on (launch.launcher_lost: continue), and a launcher on any host takes them over."""
import os
import signal

import hosts
import runs
import skip
from runs import PROGRAM, distill, result_of

SETTINGS = ("rpc.peer_timeout=4s", "rpc.heartbeat_interval=200ms", "train.save_steps=50",
            "launch.launcher_lost=continue")
ON_HOSTS = runs.on_hosts(1, 2, 1)
STEPS = 600


class AttachTest(runs.RunTest):
    def begin(self):
        secret = self.folder / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        secret.chmod(0o600)
        self.net = self.network(["launcher", "h1", "h2", "h3"])
        self.launcher, self.h1, self.h2, self.h3 = self.net.hosts
        expected = self.one_host(self.launcher, "one", distill(STEPS))
        run = self.launch(self.launcher, "run", distill(STEPS) + ON_HOSTS, *SETTINGS,
                          f"launch.secret_file={self.folder}/secret")
        self.wait_for_steps(run, 8)
        return run, expected

    def attach(self, host, run):
        process = hosts.Process(host, [PROGRAM, "launch", "--attach", run.run],
                                self.folder / "attached.out")
        process.run = run.run
        return process

    def expect_progress(self, run):
        before = self.steps(run)
        hosts.wait_until(lambda: self.steps(run) >= before + 5, "steps without a launcher", 60)
        self.assertLess(self.steps(run), STEPS)

    def test_another_launcher_starts_what_is_lost_in_a_spare_slot(self):
        run, expected = self.begin()
        run.signal(signal.SIGKILL)
        self.finish(run, 137)
        self.expect_progress(run)
        second = self.attach(self.launcher, run)
        hosts.wait_until(lambda: "teacher/0 serving" in second.text(), "the teacher is there", 60)
        teacher = [p for p, text in self.h2.processes().items() if "--role teacher" in text]
        os.kill(teacher[0], signal.SIGKILL)
        self.finish(second)
        self.assertIn("it is started again, 1 of 8 times", second.text())
        self.assertEqual(result_of(run.run), expected)
        self.expect_nothing_left(self.net)

    def test_a_launcher_on_another_host_takes_over_when_that_of_the_first_is_gone(self):
        run, expected = self.begin()
        self.launcher.gone()
        self.expect_progress(run)
        second = self.attach(self.h1, run)
        self.finish(second)
        self.assertEqual(result_of(run.run), expected)
        self.expect_nothing_left(self.net, gone=[self.launcher])

    def test_nobody_takes_it_over_and_it_gets_done(self):
        run, expected = self.begin()
        run.signal(signal.SIGKILL)
        hosts.wait_until(lambda: (run.run / "final").exists(), "the run is done", runs.LIMIT)
        self.expect_nothing_left(self.net)
        self.assertEqual(result_of(run.run), expected)


if __name__ == "__main__":
    skip.main()
