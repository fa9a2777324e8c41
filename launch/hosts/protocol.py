"""Messages between a launcher and its copy process: orders on standard input, reports on standard output."""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.launch.hosts.wire import Announcement


class HostsOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what to copy. It is not an argument, because every user can list arguments of processes."""

    directory: str
    """Absolute path of the run directory."""
    uploaded: bool
    """Whether ranks upload their folders to a storage when they end; then only files that a watch reads are copied."""
    listen: tuple[str, int]
    """Address and port at which the first host listens: '' for all addresses, 0 for any port."""
    certificate: str | None = None
    key: str | None = None


class Meet(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts completed a rendezvous."""

    node: int
    num_nodes: int
    addresses: list[str] = []
    """Addresses of this host; only for node 0."""
    announcement: Announcement | None = None
    """The announcement of node 0; None on node 0 itself."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The job ended on this host."""

    exit_code: int
    failed: dict[str, int] = {}


class ToHosts(msgspec.Struct, frozen=True, kw_only=True):
    """A line on standard input; one field is set."""

    meet: Meet | None = None
    end: End | None = None


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """The result of copying."""

    role: Literal["first", "copied", "shared", "kept"]
    """first: this is the first host, which received files; copied: all files are on the first host; shared: all hosts
    record into one directory; kept: the files stay on this host."""
    place: str = ""
    """`HOST:DIRECTORY` of the first host."""
    num_copied: int = 0
    """On the first host: number of hosts that copied all their files."""
    missing: list[str] = []
    """On the first host: hosts that did not."""
    places: list[str] = []
    """On the first host, if `uploaded`: what was copied only for the watch; the hosts that recorded it upload it."""
    ends: list[End] = []
    """On the first host: how the job ended on the other hosts."""


class FromHosts(msgspec.Struct, frozen=True, kw_only=True):
    """A line on standard output; one field is set."""

    serving: Announcement | None = None
    say: str = ""
    gathered: Gathered | None = None
