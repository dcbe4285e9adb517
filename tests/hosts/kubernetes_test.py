"""The pods of what `retort launch --dry-run` prints, run on whole hosts (pods.py) as Kubernetes
would run them: the numbers of `retort launch` on one host, a pod that is there before DNS knows
where the run meets, the end of all pods and another apply, and a pod that fails."""
import json
import os
import pathlib
import signal
import sys
import time

import hosts
import manifests
import pods
import skip
from runs import LIMIT, PROGRAM, RunTest, distill, grpo, result_of, scenarios

# With more time to save than a busy machine may need.
CLUSTER = """launch:
  backend: kubernetes
  stop_timeout: 2m
  kubernetes:
    image: retort:1
    pod: {terminationGracePeriodSeconds: 125}
    volumes:
      - {path: /srv/runs, claim: runs}
      - {path: /srv/models, claim: models, read_only: true}
      - {path: /srv/data, claim: data, read_only: true}
output_dir: /srv/runs/first
"""


class KubernetesTest(RunTest):
    def setUp(self):
        super().setUp()
        self.claims = {"runs": self.folder / "runs", "data": self.folder,
                       "models": scenarios.GOLDENS}
        self.claims["runs"].mkdir()
        self.run_folder = self.claims["runs"] / "first"

    def make(self, text, *arguments):
        """The manifests of a recipe, and every pod of them."""
        for here, there in ((self.claims["models"], "/srv/models"),
                            (self.claims["data"], "/srv/data"), (", restarts: 8", "")):
            text = text.replace(str(here), there)
        recipe = self.folder / "recipe.yaml"
        recipe.write_text(text + CLUSTER)
        return pods.pods_of(manifests.read(manifests.printed(PROGRAM, recipe, *arguments)))

    def hosts_of(self, made):
        """A host for each pod: they meet over the network alone."""
        return self.network([pod.name for pod in made], keep=[sys.prefix, sys.base_prefix])

    def start_pods(self, network, made, chosen=None, known=None):
        """Starts pods, all unless they are chosen; `known` are those that DNS has."""
        on = dict(zip((pod.name for pod in made), network.hosts))
        peers = [(pod, on[pod.name]) for pod in (made if known is None else known)]
        running = [pods.RunningPod(pod, on[pod.name], self.claims, peers, PROGRAM, self.folder)
                   for pod in (made if chosen is None else chosen)]
        for process in running:
            process.run = self.run_folder
        return running

    def finish_all(self, running, codes=None):
        """`codes`: role -> exit code, of those that do not end with 0."""
        for process in running:
            self.finish(process, (codes or {}).get(process.pod.role, 0))

    def test_grpo_has_the_bits_of_one_host(self):
        text = grpo(self.folder)
        made = self.make(text)
        self.assertEqual([pod.role for pod in made], ["student", "student", "generator"])
        network = self.hosts_of(made)
        expected = self.one_host(network.hosts[0], "one", text)
        self.finish_all(self.start_pods(network, made))
        self.assertEqual(result_of(self.run_folder), expected)
        self.expect_nothing_left(network)
        status = json.loads((self.run_folder / "status.json").read_text())
        self.assertEqual({one["host"] for one in status["processes"]}, {pod.name for pod in made})

    def test_pods_wait_until_dns_knows_where_the_run_meets(self):
        text = distill()
        made = self.make(text)
        network = self.hosts_of(made)
        expected = self.one_host(network.hosts[0], "one", text)
        early = self.start_pods(network, made, chosen=made[1:], known=[])
        for process in early:  # it has looked for pod 0, which nobody knows
            hosts.wait_until(lambda: b"join" in self.command_of(process), "retort join runs")
            self.assertTrue(process.running(), process.text())
        first = self.start_pods(network, made, chosen=made[:1])
        for process in early:
            for pod, host in zip(made, network.hosts):
                process.add_name(pod, host)
        self.finish_all(first + early)
        self.assertEqual(result_of(self.run_folder), expected)
        self.expect_nothing_left(network)

    def command_of(self, process):
        return pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes()

    def test_the_end_of_all_pods_saves_and_another_apply_goes_on_to_the_same_bits(self):
        text = distill(200)
        made = self.make(text)
        network = self.hosts_of(made)
        expected = self.one_host(network.hosts[0], "one", text)
        running = self.start_pods(network, made)
        self.wait_for_steps(running[0], 3)
        begin = time.monotonic()
        for process in running:
            process.end()
        self.finish_all(running, {"student": 4})
        print(f"ended {time.monotonic() - begin:.1f} s after SIGTERM", flush=True)
        self.expect_nothing_left(network)
        self.assertLess(self.steps(running[0]), 200)
        self.assertIn("start all processes again with --resume", running[0].text())

        again = self.make(text, "--resume")
        self.assertEqual([pod.name for pod in again], [pod.name for pod in made])
        self.finish_all(self.start_pods(network, again))
        self.assertEqual(result_of(self.run_folder), expected)
        self.expect_nothing_left(network)

    def test_kubelets_that_ask_one_after_another_are_one_request(self):
        made = self.make(distill(100000))
        network = self.hosts_of(made)
        first, second, teacher = running = self.start_pods(network, made)
        self.wait_for_steps(running[0], 3)
        # Nobody ends before its time: the students' next step needs the teacher, whose rank is a
        # child of the pod's first process.
        rank = hosts.child_of(teacher.entry, teacher.pid)
        os.kill(rank, signal.SIGSTOP)
        second.end()
        hosts.wait_until(lambda: "stopping (" in first.text(), "student/0 hears of it", LIMIT)
        first.end()
        hosts.wait_until(lambda: not self.is_pending(first, signal.SIGTERM), "it gets its own")
        os.kill(rank, signal.SIGCONT)
        teacher.end()
        self.finish_all(running, {"student": 4})
        self.expect_nothing_left(network)

    def lose(self, lost):
        """A run whose pod `lost` is killed; the other pods' processes."""
        made = self.make(distill(100000))
        network = self.hosts_of(made)
        running = self.start_pods(network, made)
        self.wait_for_steps(running[0], 3)
        running[lost].signal(signal.SIGKILL)
        for process in running:
            code = process.wait(LIMIT)
            if process.pod.role == "student" or process is running[lost]:
                self.assertNotEqual(code, 0, process.text())
        self.expect_nothing_left(network)
        return running

    def expect_named(self, lost, name):
        first = self.lose(lost)[0]
        self.assertEqual(first.wait(LIMIT), 1, first.text())
        self.assertIn(name, first.text())

    def test_a_pod_that_serves_and_fails_ends_the_run_by_name(self):
        self.expect_named(2, "teacher/0")

    def test_a_pod_that_trains_and_fails_ends_the_run_by_name(self):
        self.expect_named(1, "student/1")

    def test_the_loss_of_the_pod_that_keeps_the_run_ends_all_others(self):
        second = self.lose(0)[1]
        self.assertIn("the launcher", second.text())

    def test_a_pod_that_waits_ends_when_it_is_asked(self):
        # The first process of a container gets no signal that it neither handles nor waits for.
        made = self.make(distill())
        network = self.hosts_of(made)
        (waiting,) = self.start_pods(network, made, chosen=made[-1:])
        hosts.wait_until(lambda: b"join" in self.command_of(waiting), "retort join runs")
        self.expect_orphans_reaped(waiting)
        waiting.signal(signal.SIGTERM)
        self.finish(waiting, 128 + signal.SIGTERM)
        self.expect_nothing_left(network)

    def expect_orphans_reaped(self, process):
        """What a command leaves behind becomes a child of the pod's first process, as the kernel
        has it; only that one can reap it."""
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def number():
            return len(children.read_text().split())
        hosts.wait_until(lambda: number() == 1, "the rank is a child")
        hosts.checked(["nsenter", "-t", str(process.pid), "-p", "--", "sh", "-c",
                       "sleep 1 >/dev/null 2>&1 & exit 0"])
        hosts.wait_until(lambda: number() == 2, "an orphan is a child")
        hosts.wait_until(lambda: number() == 1, "it has been reaped")

    def is_pending(self, process, number):
        lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
        signals = next(line for line in lines if line.startswith("ShdPnd:")).split()[1]
        return bool(int(signals, 16) >> (number - 1) & 1)


if __name__ == "__main__":
    manifests.run_with_types()
    skip.main(manifests.why_not)
