"""A long, bad line: what one of two TAP devices gets comes out of the other, later or not at all.
wire.py ONE OTHER DELAY LOSS makes both, in the network it is started in, and says "up".

DELAY: seconds; LOSS: which part of all frames. Not every kernel has the queue that tc calls netem,
which would do the same."""
import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 65536  # bytes, at most


def tap(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def send(device, frame):
    try:
        os.write(device, frame)
    except OSError:
        pass  # as a line that is full, or down


def main():
    one, other = tap(sys.argv[1]), tap(sys.argv[2])
    delay, loss = float(sys.argv[3]), float(sys.argv[4])
    print("up", flush=True)

    # Each frame waits as long as any other, so that the first to come is the first to go.
    waiting, chance = collections.deque(), random.Random(1)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select([one, other], [], [], pause)[0]:
            try:
                frame = os.read(device, FRAME)
            except OSError:
                continue  # nothing is there, or the device is not up yet
            if chance.random() >= loss:
                there = other if device == one else one
                waiting.append((time.monotonic() + delay, there, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            send(*waiting.popleft()[1:])


main()
