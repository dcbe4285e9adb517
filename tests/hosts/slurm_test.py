"""Runs with launch.backend: slurm on a real cluster (slurm.py): the numbers of one host inside an
allocation and as a job that was submitted; what is left when they end, are cancelled, reach their
time limit, or lose a node; and a job that is queued again goes on to the same numbers."""
import json
import os
import re
import signal

import hosts
import runs
import skip
import slurm

THREE = 3  # processes of runs.distill(): two students and a teacher
# Of a node whose link carries 30 kB in each step: four steps a second, however fast the machine is.
SLOW = "1mbit"
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")


class SlurmTest(runs.RunTest):
    def cluster(self, names=("n1", "n2"), **options):
        network = self.network(list(names), keep=slurm.keep())
        cluster = slurm.Cluster(network, self.folder, **options)
        self.enterContext(cluster)
        return cluster

    def recipe(self, name, text, more=""):
        text = text.replace(", restarts: 8", "")
        file = self.folder / f"{name}.yaml"
        launch = "launch: {backend: slurm%s}\n" % (", " + more if more else "")
        file.write_text(text + launch + f"output_dir: {self.folder / name}\n")
        return file

    def on_first(self, cluster, name, argv):
        """A program on the first host, with Slurm's variables."""
        process = hosts.Process(cluster.network.hosts[0], argv, self.folder / f"{name}.out",
                                cluster.env)
        process.run = self.folder / name
        return process

    def in_allocation(self, cluster, name, text, *settings, nodes=2, tasks=THREE, asked=()):
        file = self.recipe(name, text)
        return self.on_first(cluster, name, [
            slurm.program("salloc"), f"--nodes={nodes}", f"--ntasks={tasks}", "--immediate=30",
            *asked, runs.PROGRAM, "launch", file, *settings])

    def submit(self, cluster, file, *flags):
        """The number of the job."""
        process = self.on_first(cluster, file.stem + "-submit",
                             [runs.PROGRAM, "launch", file, "--submit", *flags])
        self.finish(process)
        return re.search(r"submitted job (\d+)", process.text()).group(1)

    def state(self, cluster, job):
        return cluster.job(job)["JobState"]

    def wait_for_state(self, cluster, job, *states):
        try:
            hosts.wait_until(lambda: self.state(cluster, job) in states, f"{job} {states}",
                             runs.LIMIT)
        except TimeoutError:
            self.fail(f"{cluster.job(job)}\n{self.log(job)}")

    def wait_until_queued_again(self, cluster, job):
        try:
            hosts.wait_until(lambda: cluster.job(job)["Restarts"] == "1", f"{job} queued again",
                             runs.LIMIT)
        except TimeoutError:
            self.fail(f"{cluster.job(job)}\n{self.log(job)}")

    def finish_job(self, cluster, job):
        """To its end, without the two minutes that Slurm has a job wait that is queued again.

        It may not begin within the second in which it was ended: a node refuses credentials that
        are not younger than those it has revoked, in whole seconds ("Job credential revoked").
        """
        hurried = []

        def is_done():
            known = cluster.job(job)
            waits = known["JobState"] == "PENDING" and known["Reason"] == "BeginTime"
            if waits and not hurried:
                hurried.append(cluster.run(["scontrol", "update", f"JobId={job}",
                                            "StartTime=now+2"]))
            return known["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        hosts.wait_until(is_done, f"{job} ends", runs.LIMIT)
        known = cluster.job(job)
        self.assertEqual(known["JobState"], "COMPLETED",
                         f"{known}\n{cluster.log()}\n{self.log(job)}")

    def log(self, job):
        return "".join(p.read_text() for p in self.folder.glob(f"*/slurm-{job}.log"))

    def wait_for_job_steps(self, cluster, job, run, count):
        hosts.wait_until(
            lambda: runs.steps(run) >= count or self.state(cluster, job) not in
            ("PENDING", "RUNNING", "CONFIGURING"), f"step {count}", runs.LIMIT)
        self.assertEqual(self.state(cluster, job), "RUNNING", self.log(job))

    def expect_no_process(self, cluster, gone=()):
        """Slurm's own daemons stay."""
        for host in cluster.network.hosts:
            if host in gone:
                continue

            def left():
                return [text for text in host.processes().values()
                        if not any(daemon in text for daemon in DAEMONS)]
            try:
                hosts.wait_until(lambda: not left(), host.name, 60)
            except TimeoutError:
                self.fail(f"left on {host.name}: {left()}")
        self.assertEqual(list(self.folder.glob("*/.secret")), [])

    def expected(self, cluster, text):
        return self.one_host(cluster.network.hosts[0], "one", text.replace(", restarts: 8", ""))

    def test_inside_an_allocation_the_roles_are_steps_with_the_bits_of_one_host(self):
        cluster = self.cluster()
        expected = self.expected(cluster, runs.distill())
        process = self.in_allocation(cluster, "run", runs.distill(), nodes=2)
        self.finish(process)
        self.assertEqual(runs.result_of(process.run), expected)
        status = json.loads((process.run / "status.json").read_text())
        self.assertEqual({p["host"] for p in status["processes"]}, {"n1", "n2"}, status)
        self.assertEqual({p["exit_code"] for p in status["processes"]}, {0})
        self.assertIn(" teacher/0 ", (process.run / "logs/teacher-0.log").read_text())
        self.expect_no_process(cluster)

        again = self.in_allocation(cluster, "grpo", runs.grpo(self.folder))
        self.finish(again)
        self.expect_no_process(cluster)

    def test_what_slurm_cannot_do_is_said_and_nothing_waits(self):
        cluster = self.cluster(("n1", "n2", "n3"))
        outside = self.on_first(cluster, "outside", [
            runs.PROGRAM, "launch", self.recipe("outside", runs.distill())])
        self.finish(outside, 2)
        self.assertIn("this is no allocation", outside.text())

        small = self.in_allocation(cluster, "small", runs.distill(), nodes=1, tasks=1)
        self.finish(small, 3)
        self.assertIn("srun ended before the processes of", small.text())
        self.assertIn("More processors requested than permitted", small.text())

        # Ranks of tp exchange every layer.
        text = runs.distill().replace("{dp: 2, tp: 1,", "{dp: 1, tp: 2,", 1)
        wide = self.in_allocation(cluster, "wide", text, nodes=3, asked=["--ntasks-per-node=1"])
        self.finish(wide, 2)
        self.assertRegex(wide.text(), "Slurm has put student/0 on n. and student/1 on n.; ask for")
        self.assertIn("the launcher called the run off: roles.student.world.tp is 2",
                      (wide.run / "logs/student-1.log").read_text())

        slow = self.in_allocation(cluster, "slow", runs.distill(), "launch.stop_timeout=40s")
        self.finish(slow, 2)
        self.assertIn("raise KillWait in slurm.conf", slow.text())

        asked = self.in_allocation(cluster, "asked", runs.distill(), "launch.slurm.time=10")
        self.finish(asked, 2)
        self.assertIn("launch.slurm.time has no effect inside an allocation", asked.text())

        file = self.recipe("refused", runs.distill(), "slurm: {partition: no}")
        refused = self.on_first(cluster, "refused", [runs.PROGRAM, "launch", file, "--submit"])
        self.finish(refused, 3)
        self.assertIn("invalid partition", refused.text())
        file = self.recipe("none", runs.distill(), "slurm: {gres: 'tpu:1'}")
        none = self.on_first(cluster, "none", [runs.PROGRAM, "launch", file, "--submit"])
        self.finish(none, 3)
        self.assertIn("Invalid generic resource (gres) specification", none.text())
        self.assertEqual(sorted(p.name for p in (self.folder / "refused").iterdir()), [".lock"])
        self.expect_no_process(cluster)

    def test_ctrl_c_in_an_allocation_saves(self):
        cluster = self.cluster()
        process = self.in_allocation(cluster, "run", runs.distill(100000))
        self.wait_for_steps(process, 3)
        launcher = [pid for pid, text in cluster.network.hosts[0].processes().items()
                    if text.startswith(f"{runs.PROGRAM} launch")]
        self.assertEqual(len(launcher), 1)
        os.kill(launcher[0], signal.SIGINT)
        self.finish(process, 130)
        self.assertIn("continue with", process.text())
        self.expect_no_process(cluster)

    def test_a_submitted_job_asks_for_what_the_recipe_says_and_scancel_saves(self):
        cluster = self.cluster()
        expected = self.expected(cluster, runs.distill(200))
        keys = ("slurm: {partition: other, account: lab, time: '30', "
                "args: [--nodes=2, --comment=ours], requeue: true}")
        file = self.recipe("run", runs.distill(200), keys)
        job = self.submit(cluster, file,
                          "roles.student.env={MY_KEY: hf_4711, LD_PRELOAD: /nowhere.so}")
        self.wait_for_job_steps(cluster, job, self.folder / "run", 3)
        # A variable of a role has its value in the job, and is none of srun's.
        self.assertIn("the role's environment has LD_PRELOAD, MY_KEY",
                      (self.folder / "run/logs/student-0.log").read_text())
        self.assertNotIn("/nowhere.so", (self.folder / "run/logs/srun-student.log").read_text())
        known = cluster.job(job)
        for key, value in (("Partition", "other"), ("Account", "lab"), ("TimeLimit", "00:30:00"),
                           ("NumNodes", "2"), ("Comment", "ours"), ("Requeue", "1")):
            self.assertEqual(known.get(key), value, known)

        cluster.run(["scancel", job])
        self.wait_for_state(cluster, job, "CANCELLED")
        self.expect_no_process(cluster)
        self.assertLess(runs.steps(self.folder / "run"), 200)
        self.assertIn("--submit --resume", self.log(job))
        self.assertNotIn("queued again", self.log(job))

        again = self.submit(cluster, file, "--resume")
        self.finish_job(cluster, again)
        self.assertEqual(runs.result_of(self.folder / "run"), expected)
        self.expect_no_process(cluster)

    def test_at_its_time_limit_a_job_saves_is_queued_again_and_goes_on_to_the_same_bits(self):
        cluster = self.cluster()
        steps = 400
        expected = self.expected(cluster, runs.distill(steps))
        n2 = cluster.network.hosts[1]
        n2.limit(SLOW)
        file = self.recipe("run", runs.distill(steps), "slurm: {time: '2', args: [--nodes=2]}")
        job = self.submit(cluster, file)
        self.wait_for_job_steps(cluster, job, self.folder / "run", 3)
        # As if most of its time had passed: the limit is what a user may always lower.
        cluster.run(["scontrol", "update", f"JobId={job}", "TimeLimit=1"])
        self.wait_until_queued_again(cluster, job)
        self.assertIn("queued again", self.log(job))
        self.wait_for_state(cluster, job, "PENDING")
        self.assertLess(runs.steps(self.folder / "run"), steps)
        self.expect_no_process(cluster)

        n2.limit("10gbit")
        cluster.run(["scontrol", "update", f"JobId={job}", "TimeLimit=30"])
        self.finish_job(cluster, job)
        self.assertEqual(runs.result_of(self.folder / "run"), expected)
        self.assertIn("resuming", self.log(job))
        self.expect_no_process(cluster)

    def test_a_node_that_dies_is_named_and_nothing_hangs(self):
        cluster = self.cluster()
        process = self.in_allocation(cluster, "run", runs.distill(100000), "rpc.peer_timeout=4s")
        self.wait_for_steps(process, 3)
        n2 = cluster.network.hosts[1]
        n2.gone()
        self.finish(process, 1)
        self.assertIn("it was on n2", process.text())
        self.expect_no_process(cluster, gone=[n2])

    def test_a_process_that_is_killed_is_not_taken_for_a_lost_node(self):
        cluster = self.cluster()
        process = self.in_allocation(cluster, "run", runs.distill(100000))
        self.wait_for_steps(process, 3)
        teachers = [pid for host in cluster.network.hosts for pid, text in host.processes().items()
                    if f"{runs.PROGRAM} role" in text and "--role teacher" in text]
        self.assertEqual(len(teachers), 1)
        os.kill(teachers[0], signal.SIGKILL)
        self.finish(process, 1)
        self.assertIn("teacher/0 failed first: it was killed by signal 9", process.text())
        self.expect_no_process(cluster)

    def test_a_job_that_loses_a_node_goes_on_with_another_to_the_same_bits(self):
        # As on a real cluster the launcher misses the node's processes long before Slurm misses it.
        cluster = self.cluster(("n1", "n2", "n3"), node_timeout=60)
        steps = 400
        expected = self.expected(cluster, runs.distill(steps))
        n2 = cluster.network.hosts[1]
        n2.limit(SLOW)
        file = self.recipe("run", runs.distill(steps), "slurm: {args: [--nodes=2]}")
        job = self.submit(cluster, file, "rpc.peer_timeout=4s")
        self.wait_for_job_steps(cluster, job, self.folder / "run", 10)
        used = {p["host"] for p in json.loads(
            (self.folder / "run/status.json").read_text())["processes"]}
        self.assertEqual(used, {"n1", "n2"})
        n2.gone()
        self.wait_until_queued_again(cluster, job)
        self.assertIn("it was on n2", self.log(job))
        # Slurm starts it again once it has seen that n2 is gone; not before the script of the first
        # start has ended, whose exit code would be taken for that of the second.
        self.expect_no_process(cluster, gone=[n2])
        self.finish_job(cluster, job)
        self.assertEqual(runs.result_of(self.folder / "run"), expected)
        self.expect_no_process(cluster, gone=[n2])


if __name__ == "__main__":
    skip.main(slurm.why_not)
