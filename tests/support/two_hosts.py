"""Two hosts on one machine: network namespaces joined by a cable, each with a host name and a clock of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's libfaketime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A network namespace with a host name."""

    name: str
    address: str
    holder: int
    """A process that keeps the namespaces alive."""
    ahead_s: float
    """How far its clock is ahead of the true one."""

    def command(self, *words: object) -> list[str]:
        """A command line that runs there."""
        return ["nsenter", "-t", str(self.holder), "-n", "-u", *map(str, words)]

    def environ(self) -> dict[str, str]:
        """Its network and clock; a clock that is never set stays true, as on a host whose wall clock is wrong."""
        paths = (str(Path(__file__).parent / "on_faked_clock"), os.environ.get("PYTHONPATH"))
        clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{self.ahead_s:+f}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                 "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return {"GLOO_SOCKET_IFNAME": "cable", **(clock if self.ahead_s else {})}


def why_not() -> str | None:
    """Why there can be no such hosts here; None where there can."""
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if FAKETIME is None:
        return "libfaketime is not installed"
    tried = subprocess.run(["unshare", "-n", "-u", "true"], capture_output=True, text=True, check=False)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def two_hosts(*ahead_s: float) -> Iterator[list[Host]]:
    """Two hosts that reach each other; all of it is gone behind this."""
    holders = [subprocess.Popen(["unshare", "-n", "-u", "sleep", "3600"]) for _ in ahead_s]
    try:
        for holder in holders:
            while _network(holder.pid) == _network("self"):
                assert holder.poll() is None
        hosts = [Host(name=f"host-{'ab'[index]}", address=f"10.87.3.{index + 1}", holder=holder.pid, ahead_s=ahead)
                 for index, (holder, ahead) in enumerate(zip(holders, ahead_s, strict=True))]
        first, second = hosts
        run(*first.command("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                           second.holder))
        for host in hosts:
            run(*host.command("hostname", host.name))
            run(*host.command("ip", "address", "add", f"{host.address}/24", "dev", "cable"))
            for link in ("cable", "lo"):
                run(*host.command("ip", "link", "set", link, "up"))
        yield hosts
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def run(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


def _network(process: int | str) -> Path:
    return Path(f"/proc/{process}/ns/net").readlink()
