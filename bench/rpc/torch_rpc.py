# torch.distributed.rpc between two processes, for rpc_bench: rpc_async of a function that takes
# bytes (64) or a tensor and returns nothing.
#   python torch_rpc.py default|uv     default: its own choice (shm, cma); uv: as the bare side
# Reads "run BYTES DEPTH COUNT" and "load SECONDS"; answers "SECONDS US US ..." and
# "STREAM_BYTES_PER_SECOND US US ...". Says "ready" first.
import collections
import functools
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed.rpc as rpc

SMALL_BYTES = 64
STREAM_BYTES = 64 << 20
STREAM_DEPTH = 2


def accept(_):
    return None


def init(transport, rank, init_method):
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=init_method,
        rpc_timeout=60,
        **({"_transports": ["uv"]} if transport == "uv" else {}),
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)


# A tensor whose storage is that large: a view would travel with all of its storage.
@functools.cache
def request_of(size):
    return b"x" * size if size <= SMALL_BYTES else torch.ones(size, dtype=torch.uint8)


def send(request):
    return rpc.rpc_async("worker1", accept, args=(request,))


def run(size, depth, count):
    request = request_of(size)
    replies, begun, call_us = collections.deque(), collections.deque(), []

    def finish_oldest():
        replies.popleft().wait()
        call_us.append((time.perf_counter() - begun.popleft()) * 1e6)

    start = time.perf_counter()
    for _ in range(count):
        if len(replies) == depth:
            finish_oldest()
        begun.append(time.perf_counter())
        replies.append(send(request))
    while replies:
        finish_oldest()
    return time.perf_counter() - start, call_us


def run_loaded(seconds):
    over = threading.Event()
    messages = 0

    def stream():
        nonlocal messages
        request, replies = request_of(STREAM_BYTES), collections.deque()
        while not over.is_set():
            if len(replies) == STREAM_DEPTH:
                replies.popleft().wait()
            replies.append(send(request))
            messages += 1
        for reply in replies:
            reply.wait()

    thread = threading.Thread(target=stream)
    start = time.perf_counter()
    thread.start()
    small, call_us = request_of(SMALL_BYTES), []
    while time.perf_counter() < start + seconds:
        begun = time.perf_counter()
        send(small).wait()
        call_us.append((time.perf_counter() - begun) * 1e6)
    over.set()
    thread.join()
    return messages * STREAM_BYTES / (time.perf_counter() - start), call_us


def answer(words):
    if words[0] == "run":
        return run(*(int(word) for word in words[1:]))
    return run_loaded(float(words[1]))


def main():
    torch.set_num_threads(1)
    transport = sys.argv[1]
    if len(sys.argv) > 2:
        init(transport, 1, sys.argv[2])
        rpc.shutdown(timeout=3600)
        return

    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{folder}/store"
        server = subprocess.Popen([sys.executable, __file__, transport, init_method])
        init(transport, 0, init_method)
        print("ready", flush=True)
        for line in sys.stdin:
            first, call_us = answer(line.split())
            print(first, *(f"{us:.1f}" for us in call_us), flush=True)
        rpc.shutdown()
        server.wait()


if __name__ == "__main__":
    main()
