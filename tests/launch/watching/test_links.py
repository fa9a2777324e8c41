"""What the kernel counts for connections of a process, against what was sent."""

from __future__ import annotations

import os
import socket
import sys
import time

import pytest

from distprof.launch.watching.readings import links
from distprof.launch.watching.readings.rates import Values

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_bytes_that_were_sent_are_counted(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (socket.create_server((address, 0), family=family) as server,
          socket.create_connection(server.getsockname()[:2]) as near, server.accept()[0] as far):
        near.sendall(bytes(50_000))
        while len(far.recv(1 << 20, socket.MSG_PEEK)) < 50_000:
            pass
        until = time.monotonic() + 10
        inode = os.fstat(near.fileno()).st_ino
        while True:
            one, = [one for one in links._connections() if one.inode == inode]
            if one.acked_bytes >= 50_000 or time.monotonic() > until:
                break
        assert (one.local, one.remote) == (address, address)
        assert 50_000 <= one.acked_bytes <= 50_001  # the first byte is that of the handshake
        assert 0 <= one.busy_us < 20_000_000
        assert inode in set(links.sockets_of(os.getpid()))
        other = os.fstat(far.fileno()).st_ino
        assert far.recv(1 << 20) and 50_000 <= links.socket_bytes()[other] <= 50_001  # what was received counts, too


def test_connections_within_this_host_are_no_links() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        near.sendall(b"x")
        found: Values = {}
        read, = links.readings(lambda: {0: os.getpid()})
        read(found)
        read(found)
    assert not [name for name in found if "127." in name]


def test_a_process_that_has_ended_is_passed_over() -> None:
    read, = links.readings(lambda: {0: 2**22 + 1})
    found: Values = {}
    read(found)
    assert not found
