"""Readings of the data in flight between this host and others, from the kernel's counters of ranks' TCP connections.

The kernel counts for how long a connection had data in flight, sent and not acknowledged (`tcpi_busy_time`), and how
much was acknowledged. Late ranks do not lengthen this time, as gloo and NCCL send only when the other rank is ready;
the time in which the receiver did not read (`tcpi_rwnd_limited`) is subtracted. The counters need no privileges
(netlink, sock_diag(7)); nothing is measured on the wire.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from distprof.contract.conditions import named
from distprof.launch.watching.readings.processes import PROC, RankPids
from distprof.launch.watching.readings.rates import Rates, Values

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, INET_DIAG_INFO = 4, 20, 2
ESTABLISHED = 1
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
MESSAGE, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
REQUEST = struct.Struct("=BBBxI48x")
"""inet_diag_req_v2: family, protocol, extensions, states, and a socket id that matches all."""
ADDRESSES = slice(8, 40)
"""The addresses of both ends in inet_diag_msg, after four bytes and both ports."""
UID_INODE = struct.Struct("=II")
UID_AT, HEAD_BYTES = 64, 72
"""Offset of user id and inode in inet_diag_msg, and its size."""
ACKED_AT, BUSY_AT, BOTH = 120, 168, struct.Struct("=QQ")
"""Offsets in tcp_info of tcpi_bytes_acked, which tcpi_bytes_received follows, and of tcpi_busy_time, which
tcpi_rwnd_limited follows, both in µs."""
MOST = 64
"""Most pairs of addresses that are read: those on which most is sent."""
SOCKETS_EVERY_S = 10.0
"""Time between two searches for the sockets of ranks."""
PATIENCE_S = 1.0
"""Timeout of a netlink answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    local: str
    remote: str
    inode: int
    acked_bytes: int
    received_bytes: int
    busy_us: int


def readings(pids: RankPids) -> list[Callable[[Values], None]]:
    """Returns the readings of connections."""
    return [_Links(pids).read]


class _Links:
    def __init__(self, pids: RankPids) -> None:
        self._pids, self._rates = pids, Rates()
        self._sockets, self._due_s = set[int](), 0.0

    def read(self, into: Values) -> None:
        if time.monotonic() >= self._due_s:
            self._sockets = {inode for pid in self._pids().values() for inode in sockets_of(pid)}
            self._due_s = time.monotonic() + SOCKETS_EVERY_S
        if not self._sockets:
            return
        sent, busy = Counter[str](), Counter[str]()
        for one in _connections():
            if one.inode in self._sockets and one.local != one.remote and not ip_address(one.remote).is_loopback:
                key, of_socket = f"{one.local}-{one.remote}", f"{one.inode}"
                sent[key] += round(self._rates.per_second(f"{of_socket} sent", one.acked_bytes) or 0)
                busy[key] += round(self._rates.per_second(f"{of_socket} busy", one.busy_us) or 0)
        for key, rate in sent.most_common(MOST):
            into[named("link_bytes", key)] = rate
            into[named("link_busy", key)] = busy[key] / 1e6
        self._rates.forget(but=[f"{inode} {what}" for inode in self._sockets for what in ("sent", "busy")])


def sockets_of(pid: int) -> Iterator[int]:
    """Yields the inodes of the sockets of a process; none if it has ended."""
    with suppress(OSError):
        for entry in os.scandir(PROC / str(pid) / "fd"):
            with suppress(OSError, ValueError):
                target = os.readlink(entry.path)  # noqa: PTH115 (thousands of them)
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def socket_bytes() -> dict[int, int]:
    """Returns how many bytes each TCP socket here has sent and received, by inode; empty if the kernel does not say."""
    try:
        return {one.inode: one.acked_bytes + one.received_bytes for one in _connections()}
    except OSError:
        return {}


def _connections() -> Iterator[_Connection]:
    """Yields all established TCP connections of this network namespace.

    Raises:
        OSError: This kernel does not support it.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(PATIENCE_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 1 << ESTABLISHED)
            head = MESSAGE.pack(MESSAGE.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0)
            netlink.sendto(head + request, (0, 0))
            yield from filter(None, (_connection(family, body) for body in _dumped(netlink)))


def _dumped(netlink: socket.socket) -> Iterator[bytes]:
    while True:
        content = netlink.recv(1 << 17)
        at = 0
        while at + MESSAGE.size <= len(content):
            length, kind, *_ = MESSAGE.unpack_from(content, at)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR or length < MESSAGE.size:
                raise OSError("the kernel does not list connections")
            yield content[at + MESSAGE.size:at + length]
            at += length + 3 & ~3


def _connection(family: int, body: bytes) -> _Connection | None:
    length = 4 if family == socket.AF_INET else 16
    both = body[ADDRESSES]
    local, remote = (_address(both[begin:begin + length]) for begin in (0, 16))
    _, inode = UID_INODE.unpack_from(body, UID_AT)
    at = HEAD_BYTES
    while at + ATTRIBUTE.size <= len(body):
        size, kind = ATTRIBUTE.unpack_from(body, at)
        info = body[at + ATTRIBUTE.size:at + size]
        if kind == INET_DIAG_INFO and len(info) >= BUSY_AT + BOTH.size:
            acked, received = BOTH.unpack_from(info, ACKED_AT)
            busy, not_read = BOTH.unpack_from(info, BUSY_AT)
            return _Connection(local=local, remote=remote, inode=inode, acked_bytes=acked, received_bytes=received,
                               busy_us=max(busy - not_read, 0))
        at += max(size + 3 & ~3, ATTRIBUTE.size)
    return None


def _address(packed: bytes) -> str:
    found = ip_address(packed)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
