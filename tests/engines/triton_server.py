"""Triton on the models of triton_models, as a child of this process (with the Python that has
nvidia-pytriton's wheel).

    python triton_server.py CHECKPOINT

One line on stdout once it is ready: its address. Then it serves until its stdin is closed, so that
it does not outlive who started it. The model `small` computes with the folder CHECKPOINT. Only the
wheel's program is used, not its Python package. Triton's Python back-end starts a stub for each
model, which runs Python 3.11 from the system's libpython3.11 and finds numpy by the `python3` that
is first in PATH. numpy must be below 2: with that the stub gives answers of 0 bytes and status 200.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SITE = pathlib.Path(sysconfig.get_paths()["purelib"])
TRITON = SITE / "pytriton/tritonserver"
START_SECONDS = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_models(folder, checkpoint):
    """The repository, with what its configuration leaves open."""
    shutil.copytree(HERE / "triton_models", folder)
    config = folder / "small/config.pbtxt"
    sizes = json.loads((checkpoint / "config.json").read_text())
    text = config.read_text().replace("@WEIGHTS@", str(checkpoint))
    text = text.replace("@VOCAB_ROWS@", str(sizes["vocab_size"]))
    config.write_text(text.replace("@HIDDEN_SIZE@", str(sizes["hidden_size"])))


def write_backends(folder):
    """The Python back-end with the stub beside it, where it looks for that."""
    shutil.copytree(TRITON / "backends/python", folder / "python")
    stub = TRITON / "python_backend_stubs/3.11/triton_python_backend_stub"
    shutil.copy(stub, folder / "python")


def start(folder, port):
    programs = [str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(SITE / "nvidia_pytriton.libs"),
        "PATH": ":".join(programs),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    options = {
        "model-repository": folder / "models",
        "backend-directory": folder / "backends",
        "model-control-mode": "explicit",
        "load-model": "*",
        "http-address": "127.0.0.1",
        "http-port": port,
        "http-thread-count": 2,
        "allow-grpc": "false",
        "allow-metrics": "false",
    }
    command = [TRITON / "bin/tritonserver", "--disable-auto-complete-config"]
    return subprocess.Popen(
        command + [f"--{name}={value}" for name, value in options.items()],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )


def wait_until_ready(process, address):
    """False if it ended, or is not ready after START_SECONDS."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(address + "/v2/health/ready", timeout=10):
                return True
        except OSError:
            time.sleep(0.1)
    return False


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main():
    with tempfile.TemporaryDirectory(prefix="retort-triton-") as name:
        folder = pathlib.Path(name)
        write_models(folder / "models", pathlib.Path(sys.argv[1]).resolve())
        write_backends(folder / "backends")

        # Somebody may take a free port before the server does.
        for _ in range(3):
            port = free_port()
            address = f"http://127.0.0.1:{port}"
            process = start(folder, port)
            if wait_until_ready(process, address):
                print(address, flush=True)
                sys.stdin.read()
                stop(process)
                return 0
            stop(process)
    return 1


if __name__ == "__main__":
    sys.exit(main())
