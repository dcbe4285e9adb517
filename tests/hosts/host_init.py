"""The first process of a host (hosts.py): makes the host's own places, starts sshd, and reaps.
host_init.py NAME KEYS SSHD PATIENCE KEEP...: KEYS is a folder with what goes into /etc; it is not
needed any more once this says "up". PATIENCE: seconds that sshd waits for a silent client."""
import ctypes
import os
import pathlib
import signal
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
BIND = 4096
STAGE = pathlib.Path("/mnt")
SSHD_CONFIG = """\
Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/id.pub
PasswordAuthentication no
StrictModes no
UsePAM no
ClientAliveInterval %d
ClientAliveCountMax 1
PidFile none
LogLevel ERROR
"""


def mount(source, target, kind=None, flags=0):
    target = str(target)
    encoded = kind.encode() if kind else None
    if LIBC.mount(str(source).encode(), target.encode(), encoded, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount of {source} on {target}")


def make_private_places(keep):
    """An own /tmp, /run, /dev/shm and /proc, with the folders that are kept in their old places."""
    mount("none", STAGE, "tmpfs")
    for i, path in enumerate(keep):
        (STAGE / str(i)).mkdir()
        mount(path, STAGE / str(i), flags=BIND)
    for place in ("/tmp", "/run", "/dev/shm"):
        mount("none", place, "tmpfs")
        os.chmod(place, 0o1777)
    for i, path in enumerate(keep):
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        mount(STAGE / str(i), path, flags=BIND)
    mount("proc", "/proc", "proc")


def write_etc(name, keys, patience):
    """This host's keys, names and users, where no other host sees them."""
    files = {"/etc/hosts": (keys / "hosts").read_text(), "/etc/passwd": passwords()}
    own = {path.name: path.read_bytes() for path in keys.iterdir()}
    mount("none", "/etc/ssh", "tmpfs")
    etc = pathlib.Path("/etc/ssh")
    for target, source in (("host_key", f"host-{name}"), ("id", "id"), ("id.pub", "id.pub"),
                           ("ssh_known_hosts", "known")):
        (etc / target).write_bytes(own[source])
        (etc / target).chmod(0o600 if source in (f"host-{name}", "id") else 0o644)
    (etc / "sshd_config").write_text(SSHD_CONFIG % patience)
    for path, text in files.items():
        copy = etc / pathlib.Path(path).name
        copy.write_text(text)
        mount(copy, path, flags=BIND)


def passwords():
    """With the user that sshd's unprivileged half runs as."""
    text = pathlib.Path("/etc/passwd").read_text()
    if "\nsshd:" in text:
        return text
    return text + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"


def main():
    name, keys, sshd = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    patience, keep = int(sys.argv[4]), [*sys.argv[5:], str(keys)]
    make_private_places(keep)
    write_etc(name, keys, patience)
    LIBC.umount2(str(keys).encode(), 2)
    LIBC.umount2(str(STAGE).encode(), 2)
    os.rmdir(keys)
    LIBC.sethostname(name.encode(), len(name))

    os.mkdir("/run/sshd", 0o755)
    # The first process of a host gets no signal that it does not handle, from within the host.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    subprocess.Popen([sshd, "-D", "-f", "/etc/ssh/sshd_config"], stdout=subprocess.DEVNULL)
    print("up", flush=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


main()
