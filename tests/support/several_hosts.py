"""Simulates several hosts on one machine: network namespaces on a switch, each with its own host name and clock."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import forked
from support.fork_server import HOST
from support.processes import clean_environ

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's libfaketime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A network namespace with a host name."""

    name: str
    address: str
    holder: int
    """Id of a process that keeps the namespaces alive."""
    ahead_s: float
    """Seconds by which its clock is ahead of the true time."""

    def command(self, *words: object) -> list[str]:
        """Returns a command line that runs a command on the host."""
        return ["nsenter", "-t", str(self.holder), "-n", "-u", *map(str, words)]

    def environ(self) -> dict[str, str]:
        """Returns environment variables for its network and wall clock; the monotonic clock stays correct."""
        paths = (str(Path(__file__).parent / "on_faked_clock"), os.environ.get("PYTHONPATH"))
        clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{self.ahead_s:+f}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                 "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return {"GLOO_SOCKET_IFNAME": "cable", **(clock if self.ahead_s else {})}

    def start(self, *words: object, real: bool = False, **options: Any) -> subprocess.Popen[str]:
        """Starts Python on the host; forked unless `real`, from a server with the same clock if there is one."""
        command, environ = [sys.executable, *map(str, words)], clean_environ() | self.environ()
        if real:
            return subprocess.Popen(self.command(*command), env=environ, text=True, **options)
        process = forked.popen(command, env=environ | {HOST: str(self.holder)}, text=True, **options)
        assert isinstance(process, forked.Forked), "it runs on this host"
        return process

    def lose_power(self) -> None:
        """Disconnects the host from the network, and kills all its processes."""
        run(*self.command("ip", "link", "set", "cable", "down"))
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(process.name) != self.holder and _network(process.name) == _network(self.holder):
                    os.kill(int(process.name), signal.SIGKILL)


def why_not() -> str | None:
    """Returns why such hosts cannot be simulated here; None if they can."""
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if FAKETIME is None:
        return "libfaketime is not installed"
    tried = subprocess.run(["unshare", "-n", "-u", "ip", "link", "add", "switch", "type", "bridge"],
                           capture_output=True, text=True, check=False)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def hosts_on_a_switch(*ahead_s: float) -> Iterator[list[Host]]:
    """Yields hosts that can reach each other, one per clock offset; removes them after the block."""
    holders = [subprocess.Popen(["unshare", "-n", "-u", "sleep", "3600"]) for _ in (*ahead_s, 0)]
    try:
        for holder in holders:
            while _network(holder.pid) == _network("self"):
                assert holder.poll() is None
        hosts = [Host(name=f"host-{'abcdefgh'[index]}", address=f"10.87.3.{index + 1}", holder=holders[index].pid,
                      ahead_s=ahead) for index, ahead in enumerate(ahead_s)]
        switch = Host(name="switch", address="", holder=holders[-1].pid, ahead_s=0)
        run(*switch.command("ip", "link", "add", "switch", "type", "bridge"))
        run(*switch.command("ip", "link", "set", "switch", "up"))
        for number, host in enumerate(hosts):
            run(*host.command("ip", "link", "add", "cable", "type", "veth", "peer", "name", f"port{number}", "netns",
                              switch.holder))
            run(*switch.command("ip", "link", "set", f"port{number}", "master", "switch", "up"))
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


def narrowed(one: Host, other: Host, rate: str) -> None:
    """Limits the rate between two hosts, such as to 100mbit, in both directions."""
    for mine, theirs in ((one, other), (other, one)):
        for words in (("qdisc", "add", "dev", "cable", "root", "handle", "1:", "htb"),
                      ("class", "add", "dev", "cable", "parent", "1:", "classid", "1:9", "htb", "rate", rate, "burst",
                       "32k", "cburst", "32k"),
                      ("filter", "add", "dev", "cable", "parent", "1:", "protocol", "ip", "u32", "match", "ip", "dst",
                       f"{theirs.address}/32", "flowid", "1:9")):
            run(*mine.command("tc", *words))


def widened(*hosts: Host) -> None:
    """Removes the limits of `narrowed`."""
    for host in hosts:
        run(*host.command("tc", "qdisc", "del", "dev", "cable", "root"))


@contextmanager
def delayed(one: Host, other: Host, seconds: float) -> Iterator[None]:
    """Delays each packet between two hosts."""
    relay = subprocess.Popen([sys.executable, Path(__file__).parent / "slow_relay.py", str(one.holder), one.address,
                              str(other.holder), other.address, str(seconds)], stdout=subprocess.PIPE)
    try:
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"ready\n"
        yield
    finally:
        relay.kill()
        relay.wait()
        relay.stdout.close()
