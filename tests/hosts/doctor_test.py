"""`retort doctor` on whole hosts (hosts.py): what it says of hosts that will do, and of each that
will not; and that it leaves nothing behind."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

import hosts
import runs
import skip
from runs import distill
from ssh_test import ON_HOSTS

# Listens at an address and a port, and says so.
LISTEN = """import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("up", flush=True); time.sleep(600)"""


class DoctorTest(runs.RunTest):
    def examine(self, network, text=None, *settings, code=0):
        """The findings, by (host, check)."""
        text = text or distill() + ON_HOSTS
        process = self.start(network.hosts[0], "doctor", "run", text, "--json", *settings)
        self.finish(process, code)
        findings = json.loads(process.text().splitlines()[-1])["findings"]
        return {(one["host"], one["check"]): one for one in findings}

    def expect(self, findings, where, verdict, words):
        self.assertIn(where, findings)
        self.assertEqual(findings[where]["verdict"], verdict, findings[where])
        self.assertIn(words, findings[where]["what"])
        self.assertEqual(bool(findings[where]["action"]), verdict != "ok")

    def expect_only(self, findings, *problems):
        wrong = [key for key, one in findings.items() if one["verdict"] == "problem"]
        self.assertEqual(sorted(wrong), sorted(problems))

    def test_hosts_that_will_do(self):
        for family in (4, 6):
            network = self.network(family=family)
            launcher, h1, h2 = network.hosts
            findings = self.examine(network)
            self.expect_only(findings)
            address = h2.ipv6 if family == 6 else h2.ipv4
            self.expect(findings, ("h2", "host"), "ok", f"reached at {address}")
            self.expect(findings, ("h2", "address"), "ok", f"at {address} (eth0), encrypted")
            self.expect(findings, ("h2", "clock"), "ok", "give or take")
            self.expect(findings, ("h2", "cores"), "ok" if self.cores() > 1 else "warning",
                        "for 2 processes of the run")
            self.expect(findings, ("h1", "ports"), "ok", "any port that is free")
            self.expect(findings, ("all", "inputs"), "ok", "the same on all 2 hosts")
            self.expect(findings, ("launcher", "output_dir"), "ok", "can be made")
            self.assertFalse((self.folder / "run").exists())
            self.expect_nothing_left(network)

    def cores(self):
        return len(os.sched_getaffinity(0))

    def test_what_is_wrong_with_a_host_is_said_by_its_name(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        # A port that is taken there, and a host that nobody has.
        taken = hosts.Process(h2, ["python3", "-c", LISTEN, h2.ipv4, "7000"],
                              self.folder / "taken.out")
        hosts.wait_until(lambda: taken.text() == "up\n", "a port is taken")
        text = distill() + ON_HOSTS + "rpc: {port: 7000-7001}\n"
        findings = self.examine(network, text, code=1)
        self.expect(findings, ("h2", "ports"), "problem", "1 free ports in rpc.port: 7000-7001")
        self.expect_only(findings, ("h2", "ports"))
        taken.signal(signal.SIGKILL)
        taken.wait(30)

        findings = self.examine(network, distill() + ON_HOSTS.replace("h2", "h7"),
                                code=1)
        self.expect(findings, ("h7", "host"), "problem", "could not be reached")
        self.expect(findings, ("h1", "host"), "ok", "reached at")
        self.expect_only(findings, ("h7", "host"))

    def test_other_files_and_other_programs_are_found(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        model = self.folder / "model"
        shutil.copytree(runs.scenarios.GOLDENS / "qwen3", model)
        text = (distill() + ON_HOSTS).replace(
            str(runs.scenarios.GOLDENS / "qwen3"), str(model))
        self.assertIn(str(model), text)
        config = model / "config.json"
        h2.run(["sh", "-c", f"(cat {config}; echo) > /run/other; mount --bind /run/other {config}"])
        findings = self.examine(network, text, code=1)
        self.expect(findings, ("all", "inputs"), "problem", f"{model} is not the same on h")
        h2.run(["umount", config])

        other = self.folder / "other"
        other.write_text("#!/bin/sh\necho retort-host 1 retort 9.9, build 77\ncat\n")
        other.chmod(0o755)
        findings = self.examine(network, None, f"launch.ssh.program={other}", code=1)
        self.expect(findings, ("h1", "host"), "problem", "retort 9.9, build 77; here it is retort")
        self.assertIn("copy the same program", findings["h1", "host"]["action"])

    def test_a_folder_that_is_not_shared_full_or_read_only(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        place = self.folder / "place"
        place.mkdir()
        setting = f"output_dir={place}/run"
        h2.run(["mount", "-t", "tmpfs", "none", place])
        findings = self.examine(network, None, setting, code=1)
        self.expect(findings, ("h2", "host"), "problem", f"{place}/run")
        self.expect_only(findings, ("h2", "host"))
        h2.run(["umount", place])

        launcher.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", place])
        findings = self.examine(network, distill(), setting, code=1)
        self.expect(findings, ("launcher", "disk"), "problem", "32.0 KiB free")
        launcher.run(["mount", "-o", "remount,ro", place])
        findings = self.examine(network, None, setting, code=1)
        self.expect(findings, ("launcher", "output_dir"), "problem", "Read-only file system")
        self.expect(findings, ("output_dir", "shared folder"), "problem", "Read-only file system")

    def test_a_clock_that_is_wrong_is_found(self):
        network = self.network()
        shim, program = self.folder / "clock_shim.so", self.folder / "program"
        source = pathlib.Path(__file__).with_name("clock_shim.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        for ahead, verdict, words in ((20, "problem", "s ahead of ours, give or take"),
                                      (-5, "warning", "s behind ours, give or take")):
            program.write_text(
                f"#!/bin/sh\n[ $(uname -n) = h2 ] && export LD_PRELOAD={shim} CLOCK_AHEAD={ahead}\n"
                f'exec {runs.PROGRAM} "$@"\n')
            program.chmod(0o755)
            findings = self.examine(network, None, f"launch.ssh.program={program}",
                                    code=1 if verdict == "problem" else 0)
            self.expect(findings, ("h2", "clock"), verdict, words)
            self.assertIn("set the clocks", findings["h2", "clock"]["action"])
            self.expect(findings, ("h1", "clock"), "ok", "give or take")

    @unittest.skipIf(os.path.exists("/dev/nvidia0"), "there is a device")
    def test_what_devices_need_is_asked_of_the_hosts_that_have_their_ranks(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        h2.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", "/dev/shm"])
        findings = self.examine(network, None, "roles.student.world.device=cuda", code=1)
        self.expect(findings, ("h2", "shared memory"), "warning", "/dev/shm has 64.0 MiB free")
        # Its one rank shares nothing with another.
        self.expect(findings, ("h1", "shared memory"), "ok", "/dev/shm has")
        for host in ("h1", "h2"):
            self.expect(findings, (host, "devices"), "problem", "")
        self.expect_only(findings, ("h1", "devices"), ("h2", "devices"))

    def test_a_run_that_is_alive_is_found_on_every_host(self):
        network = self.network()
        launcher, h1, h2 = network.hosts
        run = self.launch(launcher, "run", distill(100000) + ON_HOSTS)
        self.wait_for_steps(run, 3)
        findings = self.examine(network, distill(100000) + ON_HOSTS, code=1)
        self.expect(findings, ("launcher", "lock"), "problem", "of this host holds")
        self.expect(findings, ("output_dir", "shared folder"), "problem", "still run on a host")
        self.expect(findings, ("h1", "leftovers"), "problem", "processes of this run are here")
        self.expect(findings, ("h2", "leftovers"), "problem", "processes of this run are here")
        self.assertTrue(run.running(), run.text())
        run.signal(signal.SIGINT)
        self.finish(run, 130)
        self.expect_nothing_left(network)
        self.expect_only(self.examine(network))


if __name__ == "__main__":
    skip.main()
