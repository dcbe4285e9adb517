"""Runs with launch.backend: ssh on whole hosts (hosts.py): the numbers of one host, and what is
left when they end, are stopped, or lose their launcher, a host or the network."""
import signal

import hosts
import runs
import skip
from runs import PROGRAM, distill, grpo, result_of

# The student's two ranks on two hosts, and another role beside the second.
ON_HOSTS = runs.on_hosts(1, 2)


class SshTest(runs.RunTest):
    def compare(self, family):
        network = self.network(family=family)
        launcher, h1, h2 = network.hosts
        for name, text in (("distill", distill()), ("grpo", grpo(self.folder))):
            expected = self.one_host(network.hosts[0], f"{name}-one", text)
            before = h2.bytes()
            process = self.launch(launcher, f"{name}-two", text + ON_HOSTS)
            self.finish(process)
            self.assertEqual(result_of(process.run), expected)
            sent, received = (now - then for now, then in zip(h2.bytes(), before))
            print(f"{name}, IPv{family}: {sent} bytes from h2, {received} to it", flush=True)
            # Gradients of the student cross in every step, both ways, whatever else does: memory
            # that a process of h1 and one of h2 copied directly would not be seen here.
            model = (process.run / "final/model.safetensors").stat().st_size
            self.assertGreater(min(sent, received), self.steps(process) * model / 2)
            other = "teacher/0" if name == "distill" else "generator/0"
            self.assertEqual(self.places(process),
                             {"student/0": "h1", "student/1": "h2", other: "h2"})
            self.assertIn(" student/0 ", (process.run / "logs/student-0.log").read_text())
            self.expect_nothing_left(network)

    def test_two_hosts_give_the_bits_of_one_over_ipv4(self):
        self.compare(4)

    def test_two_hosts_give_the_bits_of_one_over_ipv6(self):
        self.compare(6)

    def test_ctrl_c_saves_and_the_run_goes_on_to_the_same_bits(self):
        network = self.network()
        expected = self.one_host(network.hosts[0], "one", distill(200))
        process = self.launch(network.hosts[0], "two", distill(200) + ON_HOSTS)
        self.wait_for_steps(process, 3)
        process.signal(signal.SIGINT)
        self.finish(process, 130)
        self.expect_nothing_left(network)
        self.assertLess(self.steps(process), 200)

        process = hosts.Process(
            network.hosts[0], [PROGRAM, "launch", self.folder / "two.yaml", "--resume"],
            self.folder / "resumed.out")
        self.finish(process)
        self.assertEqual(result_of(self.folder / "two"), expected)

    def test_a_launcher_that_is_killed_takes_all_hosts_along(self):
        network = self.network()
        process = self.launch(network.hosts[0], "run", distill(100000) + ON_HOSTS)
        self.wait_for_steps(process, 3)
        process.signal(signal.SIGKILL)
        self.finish(process, 137)
        self.expect_nothing_left(network)
        # The students have saved when they lost it, as they do on one host.
        newest = max(int(p.name.split("-")[1]) for p in process.run.glob("checkpoint-*[0-9]"))
        self.assertGreaterEqual(newest, 3)
        self.assertIn("the launcher", (process.run / "logs/student-0.log").read_text())

    def test_a_host_that_is_gone_ends_the_run_by_name(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        process = self.launch(launcher, "run", distill(100000) + ON_HOSTS, "rpc.peer_timeout=4s")
        self.wait_for_steps(process, 3)
        h2.gone()
        self.finish(process, 1)
        self.assertIn("host h2 is silent for 4s", process.text())
        self.expect_nothing_left(network, gone=[h2])

    def test_a_cut_for_longer_ends_the_run_and_everything_on_both_sides(self):
        network = self.network(patience=5)
        launcher, h1, h2 = network.hosts
        process = self.launch(launcher, "run", distill(100000) + ON_HOSTS, "rpc.peer_timeout=4s",
                              "launch.stop_timeout=10s")
        self.wait_for_steps(process, 3)
        h2.cut()
        self.finish(process, 1)
        self.assertIn("h2", process.text())
        self.expect_nothing_left(network)  # on h2, too, where nobody could ask for it

    def test_a_host_with_another_folder_is_named_before_anything_starts(self):
        network = self.network()
        network.hosts[2].run(["mount", "-t", "tmpfs", "none", self.folder])
        process = self.launch(network.hosts[0], "run", distill() + ON_HOSTS)
        self.finish(process, 3)
        self.assertIn("host h2 does not see the folders of this run", process.text())
        self.assertIn(str(self.folder), process.text())
        self.assertFalse((process.run / "metrics.jsonl").exists())
        self.expect_nothing_left(network)

    def test_another_program_on_a_host_is_refused_and_both_are_shown(self):
        network = self.network()
        other = self.folder / "other"
        other.write_text("#!/bin/sh\necho welcome\necho retort-host 1 retort 9.9, build 77\ncat\n")
        other.chmod(0o755)
        process = self.launch(network.hosts[0], "run", distill() + ON_HOSTS,
                              f"launch.ssh.program={other}")
        self.finish(process, 1)
        self.assertIn("retort 9.9, build 77; here it is retort ", process.text())

    def test_user_port_and_address_are_what_the_recipe_says(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        text = distill() + ON_HOSTS.replace(
            "slots: 2}", "slots: 2, address: '%s'}" % h2.ipv6).replace(
            "slots: 1}", "slots: 1, address: '%s'}" % h1.ipv6)
        # The ranks listen there for their collectives, too; the store is at the launcher's address.
        process = self.launch(launcher, "run", text, "launch.ssh.user=root", "launch.ssh.port=22")
        self.finish(process)
        self.assertIn(f"at [{h2.ipv6}]:", (process.run / "logs/teacher-0.log").read_text())
        for setting, words in (("launch.ssh.user=nobody", "Could not chdir to home directory"),
                               ("launch.ssh.port=23", "Connection refused")):
            refused = self.launch(launcher, setting[-4:], text, setting)
            self.finish(refused, 3)
            self.assertIn(words, refused.text())

    def test_a_host_that_nobody_has_is_an_error_with_the_words_of_ssh(self):
        network = self.network()
        process = self.launch(network.hosts[0], "run", distill() + ON_HOSTS.replace("h2", "h7"))
        self.finish(process, 3)
        self.assertIn("host h7 could not be reached", process.text())
        self.assertIn("resolve", process.text())
        self.expect_nothing_left(network)


if __name__ == "__main__":
    skip.main()
