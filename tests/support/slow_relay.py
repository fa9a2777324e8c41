"""A relay that delays packets between two network namespaces, for kernels without tc netem.

    slow_relay.py HOLDER ADDRESS HOLDER ADDRESS SECONDS

Each namespace gets a tun device, and a route that sends packets for the other one's address there; this also affects
open connections.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000


def device(holder: str, own: str, other: str) -> int:
    """Creates a tun device in the network namespace of a process, which receives the packets for `other`."""
    with Path(f"/proc/{holder}/ns/net").open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    number = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(number, TUNSETIFF, struct.pack("16sH", b"slow", IFF_TUN | IFF_NO_PI))
    for words in (["ip", "link", "set", "slow", "up", "mtu", "1500", "txqueuelen", "10000"],
                  ["ip", "route", "add", f"{other}/32", "dev", "slow", "src", own]):
        subprocess.run(words, check=True)
    return number


def relay(devices: list[int], seconds: float) -> None:
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        patience = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        ready, _, _ = select.select(devices, [], [], patience)
        for number in ready:
            for _ in range(256):
                try:
                    packet = os.read(number, 65536)
                except BlockingIOError:
                    break
                waiting.append((time.monotonic() + seconds, devices[1 - devices.index(number)], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            try:
                os.write(target, packet)
            except OSError:  # the device is full, or down: as on a network
                continue


if __name__ == "__main__":
    first, first_address, second, second_address, delay = sys.argv[1:]
    found = [device(first, first_address, second_address), device(second, second_address, first_address)]
    print("ready", flush=True)
    relay(found, float(delay))
