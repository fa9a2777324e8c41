"""Messages between a launcher and its process that copies files: orders on standard input, news on standard output."""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.launch.hosts.wire import Announcement


class HostsOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what is to be copied. Not an argument, as everybody may list those."""

    directory: str
    """Of the run, absolute."""
    uploaded: bool
    """Ranks are uploaded to a storage when they end: only what a watch reads is copied."""
    listen: tuple[str, int]
    """Where the first host listens: '' for all addresses, 0 for any port."""
    certificate: str | None = None
    key: str | None = None


class Meet(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts have met in a rendezvous."""

    node: int
    num_nodes: int
    addresses: list[str] = []
    """Where this host may be reached; needed of node 0."""
    announcement: Announcement | None = None
    """What node 0 told; None on that one itself."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The job has ended on this host."""

    exit_code: int
    failed: dict[str, int] = {}


class ToHosts(msgspec.Struct, frozen=True, kw_only=True):
    """A line on standard input; one of these is there."""

    meet: Meet | None = None
    end: End | None = None


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    role: Literal["first", "copied", "shared", "kept"]
    """first: others copied their files here; copied: all is on the first host; shared: all hosts record into one
    directory; kept: the files stay here."""
    place: str = ""
    """`HOST:DIRECTORY` of the first host."""
    num_copied: int = 0
    """Hosts that copied all they had; of the first host."""
    missing: list[str] = []
    """Hosts that did not, likewise."""
    places: list[str] = []
    """What was copied only to be watched, as it is uploaded by those who recorded it."""
    ends: list[End] = []
    """How the job ended on the others, likewise."""


class FromHosts(msgspec.Struct, frozen=True, kw_only=True):
    """A line on standard output; one of these is there."""

    serving: Announcement | None = None
    say: str = ""
    gathered: Gathered | None = None
