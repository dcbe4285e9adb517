"""A real cluster of Slurm on whole hosts (hosts.py): slurmctld on the first, slurmd on all.

    with Network(["n1", "n2"], keep=[folder, *slurm.keep()]) as network, \\
         slurm.Cluster(network, folder) as cluster:
        cluster.run(network.hosts[0], ["srun", "-N2", "hostname"])

Wants slurmctld, slurmd and slurm-client, from PATH or from a folder that they were unpacked into:
whichever, plug-ins and libraries are those beside the programs. Nothing of the machine's own
/etc/slurm is read."""
import os
import pathlib
import shutil
import subprocess

import hosts

PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "sbatch", "salloc", "srun", "scancel", "squeue",
            "scontrol")
CONFIG = """\
ClusterName=test
SlurmctldHost={first}
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,bf_resolution=60
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout}
InactiveLimit=0
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP
"""
NODE = "NodeName={0} CPUs=4 CoresPerSocket=4 RealMemory=1000 State=UNKNOWN"


def program(name):
    """Debian has some of them as slurmd-wlm, to which an alternative leads once it is installed."""
    return shutil.which(name, path=hosts.SEARCH) or shutil.which(f"{name}-wlm", path=hosts.SEARCH)


def why_not():
    """Why there can be no cluster here; "" if there can."""
    missing = [name for name in PROGRAMS if not program(name)]
    if missing:
        return f"there is no {missing[0]} (Debian: slurmctld, slurmd, slurm-client)"
    return ""


def libraries():
    """The folder of Slurm's own library and plug-ins, and that of what they need."""
    root = pathlib.Path(os.path.abspath(program("slurmd"))).parents[1]
    beside = next(root.glob("lib/*/slurm-wlm"), root / "lib/slurm")
    return beside, beside.parent


def keep():
    """Folders that hosts must see."""
    return [pathlib.Path(program("slurmd")).parents[1]]


class Cluster:
    def __init__(self, network, folder, node_timeout=10):
        self.network, self.folder = network, pathlib.Path(folder) / "slurm"
        self.daemons = {}
        plugins, others = libraries()
        names = [host.name for host in network.hosts]
        self.folder.mkdir()
        (self.folder / "slurm.conf").write_text(CONFIG.format(
            first=names[0], plugins=plugins, folder=self.folder, node_timeout=node_timeout,
            nodes="\n".join(map(NODE.format, names))))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        # What is unpacked and not installed finds its libraries so.
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        if not str(plugins).startswith("/usr/lib"):
            paths = [str(plugins), str(others), os.environ.get("LD_LIBRARY_PATH", "")]
            self.env["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))

    def __enter__(self):
        first = self.network.hosts[0]
        self.daemons["slurmctld"] = hosts.Process(
            first, [program("slurmctld"), "-D", "-c"], self.folder / "slurmctld.out", self.env)
        for host in self.network.hosts:
            self.start_node(host)
        hosts.wait_until(self.is_up, "all nodes are idle", 60)
        return self

    def __exit__(self, *_):
        """What they have started ends with their hosts."""
        for daemon in self.daemons.values():
            daemon.entry.kill()
            daemon.entry.wait()

    def start_node(self, host):
        self.daemons[host.name] = hosts.Process(
            host, [program("slurmd"), "-D", "-N", host.name, "-d", program("slurmstepd")],
            self.folder / f"slurmd-{host.name}.out", self.env)

    def is_up(self):
        for name, daemon in self.daemons.items():
            if not daemon.running():
                raise RuntimeError(f"{name} ended: {daemon.text()}")
        try:
            states = self.run(["sinfo", "--noheader", "--Node", "--partition=all", "-o", "%T"])
        except RuntimeError:
            return False
        return states.split() == ["idle"] * len(self.network.hosts)

    def run(self, argv, host=None):
        """What a command of Slurm's says on a host, the first unless one is named; its error."""
        entered = (host or self.network.hosts[0]).enter([program(argv[0]), *argv[1:]])
        done = subprocess.run(entered, capture_output=True, text=True, timeout=120,
                              env=dict(os.environ, PATH=hosts.SEARCH, **self.env))
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stdout}{done.stderr}")
        return done.stdout

    def log(self):
        """The last lines of what the controller says."""
        return "\n".join((self.folder / "slurmctld.log").read_text().splitlines()[-40:])

    def job(self, number):
        """What scontrol knows of a job: {"JobState": "RUNNING", ...}."""
        text = self.run(["scontrol", "--oneliner", "show", "job", number])
        return dict(word.split("=", 1) for word in text.split() if "=" in word)
