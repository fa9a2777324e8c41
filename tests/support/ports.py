"""Reserves ports for servers and jobs that start later."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
A_WORKER = 1500
"""Number of ports reserved for each pytest worker."""
WORKERS = 16
_given = set[int]()


def free_port() -> int:
    """Returns a free port below the range from which the kernel assigns ports, so that it stays free until it is used.

    Never returns the same port twice.

    Raises:
        OSError: All ports are in use.
    """
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32768
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    begin = first - A_WORKER * (1 + worker % WORKERS)
    for number in random.Random(os.getpid()).sample(range(begin, begin + A_WORKER), A_WORKER):
        if number not in _given:
            _given.add(number)
            with suppress(OSError), socket.create_server(("127.0.0.1", number)):
                return number
    raise OSError(f"expected a free port from {begin} on, found none")
