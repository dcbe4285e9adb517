"""Pods of a run on whole hosts (hosts.py), each as Kubernetes would start it from its manifests:

- the container's command is the first process of a process namespace, with the variables of the
  manifest, JOB_COMPLETION_INDEX, and no others but those of any container
- the host name is JOB-INDEX; /etc/hosts has the pod's full name, as a kubelet writes it; the other
  pods' names, which a cluster's DNS knows, stand in the same file, once `dns` is asked to add them
- Secret and ConfigMap are folders in which every file is a link to a link, as a kubelet makes them
- claims are folders that all hosts see
- who is asked to end gets SIGTERM, and SIGKILL when the manifest's grace period is over

What is not here: the Job's controller, the scheduler, images, and the API server.

pods.py POD.json: becomes the container's command; it is the first process of its namespace."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import hosts

SELF = pathlib.Path(__file__).resolve()
DOMAIN = "svc.cluster.local"
BIND, RDONLY, REMOUNT = 4096, 1, 32


class Pod:
    """One index of a Job, on a host of its own whose name is JOB-INDEX."""

    def __init__(self, job, index, objects):
        self.job, self.index = job, index
        self.name = f"{job['metadata']['name']}-{index}"
        self.spec = job["spec"]["template"]["spec"]
        self.namespace = job["metadata"]["namespace"]
        self.objects = objects
        self.container = self.spec["containers"][0]
        self.grace = self.spec["terminationGracePeriodSeconds"]
        self.role = {v["name"]: v.get("value") for v in self.container["env"]}["RETORT_ROLE"]

    def names(self):
        """Its names, the full one first."""
        short = f"{self.name}.{self.spec['subdomain']}"
        return [f"{short}.{self.namespace}.{DOMAIN}", short]

    def environment(self):
        env = {v["name"]: self.value_of(v) for v in self.container["env"]}
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root", "HOSTNAME": self.name,
                "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
                "JOB_COMPLETION_INDEX": str(self.index), **env}

    def value_of(self, variable):
        if "value" in variable:
            return variable["value"]
        place = variable["valueFrom"]["secretKeyRef"]
        return self.objects["Secret", place["name"]]["stringData"][place["key"]]

    def files(self, volume):
        """{name: content} of a volume that is made of an object; None for others."""
        if "configMap" in volume:
            return self.objects["ConfigMap", volume["configMap"]["name"]]["data"]
        if "secret" in volume:
            data = self.objects["Secret", volume["secret"]["secretName"]]["stringData"]
            return {one["path"]: data[one["key"]] for one in volume["secret"]["items"]}
        return None

    def mounts(self, claims):
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes[mount["name"]]
            files = self.files(volume)
            source = None
            if files is None:
                source = str(claims[volume["persistentVolumeClaim"]["claimName"]])
            yield {"path": mount["mountPath"], "files": files, "source": source,
                   "read_only": mount.get("readOnly", False)}


def pods_of(trees):
    """Every pod that a controller would make of these manifests."""
    objects = {(tree["kind"], tree["metadata"]["name"]): tree for tree in trees}
    return [Pod(tree, index, objects) for tree in trees if tree["kind"] == "Job"
            for index in range(tree["spec"]["completions"])]


class RunningPod(hosts.Process):
    """A pod whose command runs, on `host`; `peers`: (pod, host) that DNS knows at its start."""

    def __init__(self, pod, host, claims, peers, program, folder):
        self.pod, self.host, self.grace_ends = pod, host, None
        own = f"{host.ipv4}\t{pod.names()[0]}\t{pod.name}"
        lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost", own]
        plan = folder / f"{pod.name}.json"
        plan.write_text(json.dumps({
            "hosts": lines + [dns_line(*peer) for peer in peers if peer[0] is not pod],
            "mounts": list(pod.mounts(claims)), "env": pod.environment(),
            "command": pod.container["command"], "program": str(program)}))
        super().__init__(host, ["unshare", "--mount", "--pid", "--fork", "--mount-proc",
                                "--kill-child=SIGKILL", sys.executable, SELF, plan],
                         folder / f"{pod.name}.log")
        self.pid = hosts.child_of(self.entry, self.pid)  # the first one of the pod

    def end(self):
        self.signal(signal.SIGTERM)
        self.grace_ends = time.monotonic() + self.pod.grace

    def wait(self, seconds):
        if self.grace_ends is None:
            return super().wait(seconds)
        try:
            return super().wait(max(0, self.grace_ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            return super().wait(seconds)

    def add_name(self, pod, host):
        """DNS knows another pod from now on."""
        line = dns_line(pod, host)
        hosts.checked(["nsenter", "-t", str(self.pid), "-m", "--", "sh", "-c",
                       f"echo '{line}' >>/etc/hosts"])


def dns_line(pod, host):
    return "\t".join([host.ipv4, *pod.names()])


def mount(source, target, kind=None, flags=0):
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = kind.encode() if kind else None
    if libc.mount(str(source).encode(), str(target).encode(), encoded, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount of {source} on {target}")


def write_files(folder, files):
    """As a kubelet does: name -> ..data/name, and ..data -> a folder of this version."""
    version = folder / "..2026_11_23"
    version.mkdir()
    (folder / "..data").symlink_to(version.name)
    for name, text in files.items():
        (version / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")


def become_container(plan):
    """An /etc and a /srv of its own, with the mounts below them; the image's program in PATH."""
    mount("none", "/mnt", "tmpfs")
    etc, bin_folder = pathlib.Path("/mnt/etc"), pathlib.Path("/mnt/bin")
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    (etc / "hosts").unlink()
    (etc / "hosts").write_text("\n".join(plan["hosts"]) + "\n")
    bin_folder.mkdir()
    (bin_folder / "retort").symlink_to(plan["program"])
    mount(etc, "/etc", flags=BIND)
    mount("none", "/srv", "tmpfs")

    for one in plan["mounts"]:
        path = pathlib.Path(one["path"])
        path.mkdir(parents=True)
        if one["source"]:
            mount(one["source"], path, flags=BIND)
        else:
            mount("none", path, "tmpfs")
            write_files(path, one["files"])
        if one["read_only"]:
            mount("none", path, flags=REMOUNT | BIND | RDONLY)

    env = dict(plan["env"], PATH=f"{bin_folder}:{plan['env']['PATH']}")
    os.chdir("/")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvpe(plan["command"][0], plan["command"], env)


if __name__ == "__main__":
    become_container(json.loads(pathlib.Path(sys.argv[1]).read_text()))
