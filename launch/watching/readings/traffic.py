"""Readings of the disks and networks of a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from distprof.contract.conditions import named
from distprof.launch.watching.readings.rates import Rates, Values, put

BLOCKS, NETS = Path("/sys/block"), Path("/sys/class/net")
INFINIBAND = Path("/sys/class/infiniband")
NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "nbd")
"""Prefixes of block devices that are no disks, or lie on others that are counted."""
NO_NETS = ("lo", "ifb")
"""Prefixes of network interfaces that are not read."""
MOST = 16
"""Most disks, network interfaces and InfiniBand ports that are read."""
WORD_BYTES = 4
"""InfiniBand counters count words of this size."""
TCP_SENT, TCP_RESENT = "OutSegs", "RetransSegs"


def readings() -> list[Callable[[Values], None]]:
    """Returns the readings of disks and networks; each may fail by itself."""
    rates = Rates()
    return [_Disks(rates).read, _Interfaces(rates).read, _Tcp(rates).read, *[port.read for port in _ports(rates)]]


class _Disks:
    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._names = {path.name for path in BLOCKS.glob("*") if not path.name.startswith(NO_DISKS)}

    def read(self, into: Values) -> None:
        every = psutil.disk_io_counters(perdisk=True, nowrap=False)
        for name in sorted(self._names & every.keys())[:MOST]:
            one = every[name]
            busy = self._rates.per_second(f"{name} busy", one.busy_time)
            put(into, named("disk_busy", name), None if busy is None else min(busy / 1e3, 1.0))
            put(into, named("disk_bytes", name),
                self._rates.per_second(f"{name} bytes", one.read_bytes + one.write_bytes))
            requests = self._rates.grown(f"{name} requests", one.read_count + one.write_count)
            waited_ms = self._rates.grown(f"{name} waited", one.read_time + one.write_time)
            if requests and waited_ms is not None:
                into[named("disk_wait_ms", name)] = waited_ms / requests


class _Interfaces:
    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def read(self, into: Values) -> None:
        every = psutil.net_io_counters(pernic=True, nowrap=False)
        used = [(name, one) for name, one in sorted(every.items())
                if not name.startswith(NO_NETS) and one.bytes_sent + one.bytes_recv]
        used.sort(key=lambda each: not (NETS / each[0] / "device").exists())  # of containers there may be hundreds
        for name, one in used[:MOST]:
            both = [self._rates.per_second(f"{name} {way}", total)
                    for way, total in (("out", one.bytes_sent), ("in", one.bytes_recv))]
            known = [rate for rate in both if rate is not None]
            put(into, named("net_bytes", name), max(known) if known else None)
            put(into, named("net_drops", name), self._rates.per_second(f"{name} drops", one.dropin + one.dropout))
            put(into, named("net_errors", name), self._rates.per_second(f"{name} errors", one.errin + one.errout))
            put(into, named("net_most_bytes", name), _most_bytes(name))


def _most_bytes(name: str) -> float | None:
    """Returns the speed that the driver of an interface reports, in bytes per second; None for virtual interfaces."""
    try:
        megabits = int((NETS / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


class _Tcp:
    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def read(self, into: Values) -> None:
        names, values = [line.split()[1:] for line in Path("/proc/net/snmp").read_text().splitlines()
                         if line.startswith("Tcp:")]
        counters = dict(zip(names, map(int, values), strict=True))
        sent = self._rates.grown("sent", counters[TCP_SENT])
        again = self._rates.grown("resent", counters[TCP_RESENT])
        if again is not None and sent:
            into["resent"] = min(again / sent, 1.0)


def _ports(rates: Rates) -> list[_Port]:
    found, paths = [], sorted(INFINIBAND.glob("*/ports/*/counters"))[:MOST]
    number = Counter(path.parents[2] for path in paths)
    for path in paths:
        adapter, port = path.parents[2], path.parent.name
        with suppress(OSError, ValueError, IndexError):  # a port without these files
            # named as UCX and NCCL do
            found.append(_Port(rates, path, f"{adapter.name}:{port}" if number[adapter] > 1 else adapter.name))
    return found


class _Port:
    """A port of an InfiniBand adapter."""

    def __init__(self, rates: Rates, counters: Path, name: str) -> None:
        self._rates, self._counters, self._name = rates, counters, name
        gigabits = (counters.parent / "rate").read_text().split()[0]
        self._most_bytes = float(gigabits) * 1e9 / 8

    def read(self, into: Values) -> None:
        ways = [self._rates.per_second(f"{self._counters} {name}", self._counter(f"port_{name}_data") * WORD_BYTES)
                for name in ("xmit", "rcv")]
        known = [rate for rate in ways if rate is not None]
        put(into, named("net_bytes", self._name), max(known) if known else None)
        into[named("net_most_bytes", self._name)] = self._most_bytes
        wrong = sum(self._counter(name) for name in ("symbol_error", "link_downed", "port_rcv_errors"))
        put(into, named("net_errors", self._name), self._rates.per_second(f"{self._counters} wrong", wrong))

    def _counter(self, name: str) -> int:
        return int((self._counters / name).read_text())
