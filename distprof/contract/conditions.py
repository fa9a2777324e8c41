"""`conditions-000.bin`, `conditions-001.bin`, ... in `hosts/<host>-<boot id>/`: readings of the machine, once a second.

A file is a sequence of frames (`distprof/files.py`), each a `Moments` as MessagePack. A column is named by the reading
and, if a host has several devices or ranks, by which one: `psi_memory`, `disk_wait_ms/nvme0n1`, `gpu_mhz/3`,
`rank_others/12`. Beyond a limit, the oldest files are removed: then there is no file 000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distprof.files import frame_contents, framed

MARK = b"dpC1"
HOSTS = "hosts"
"""Folder of the run directory that contains one folder per host."""
PATTERN = "conditions-[0-9][0-9][0-9].bin"
NUMBERS = 1000
"""After file 999 comes 000; the first file 000 was removed long before."""
TIME_UNIT_NS = 1_000_000
"""Times are stored in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A quantity that is read from the machine."""

    unit: str
    grain: float
    """Values are stored as multiples of it."""
    what: str


def _reading(unit: str, grain: float, what: str) -> Reading:
    return Reading(unit=unit, grain=grain, what=what)


READINGS = {
    "cpu_mhz": _reading("MHz", 10, "CPU clock, mean of up to 8 processors"),
    "cpu_most_mhz": _reading("MHz", 10, "maximum CPU clock"),
    "cpu_throttles": _reading("1/s", 0.1, "CPU slowdowns because of heat"),
    "work_us": _reading("us", 0.2, "CPU time of a fixed piece of work"),
    "runnable": _reading("1/processor", 0.05, "tasks running or waiting for a CPU"),
    "busy": _reading("ratio", 0.01, "CPU time used by all processes"),
    "steal": _reading("ratio", 0.01, "CPU time taken by other virtual machines (steal)"),
    "node_busy": _reading("ratio", 0.01, "CPU time used on a NUMA node"),
    "others": _reading("1/processor", 0.01, "CPUs used by processes that are not part of the job"),
    "psi_cpu": _reading("ratio", 0.01, "time that tasks waited for a CPU"),
    "psi_memory": _reading("ratio", 0.01, "time that tasks waited for memory"),
    "psi_io": _reading("ratio", 0.01, "time that tasks waited for I/O"),
    "memory_available": _reading("ratio", 0.005, "share of memory that is available"),
    "swap_bytes": _reading("B/s", 65536, "swap traffic"),
    "disk_busy": _reading("ratio", 0.02, "time that a disk was busy"),
    "disk_wait_ms": _reading("ms", 0.5, "mean time of a disk request"),
    "disk_bytes": _reading("B/s", 65536, "read and written"),
    "net_bytes": _reading("B/s", 65536, "sent or received by a network interface, whichever is larger"),
    "net_most_bytes": _reading("B/s", 65536, "speed of the interface, as its driver reports it"),
    "net_drops": _reading("1/s", 1, "packets dropped by an interface"),
    "net_errors": _reading("1/s", 0.1, "packets or symbols with errors"),
    "link_bytes": _reading("B/s", 1024, "sent by ranks of this host to the other address and acknowledged there"),
    "link_busy": _reading("ratio", 0.002, "time that such data was in flight, summed over connections"),
    "resent": _reading("ratio", 0.001, "share of TCP segments that were retransmitted"),
    "rank_processors": _reading("processors", 1, "number of CPUs that a rank may run on"),
    "rank_others": _reading("ratio", 0.02, "share of their time used neither by the rank nor by its child processes"),
    "rank_waits": _reading("ratio", 0.02, "time that the main thread of a rank waited for a CPU"),
    "rank_stopped": _reading("ratio", 0.01, "share of periods in which the CPU quota of its cgroup stopped a rank"),
    "rank_gpu": _reading("number", 1, "GPU used by the process of a rank"),
    "gpu_mhz": _reading("MHz", 15, "clock of a GPU"),
    "gpu_most_mhz": _reading("MHz", 15, "maximum clock of a GPU"),
    "gpu_watts": _reading("W", 5, "power draw of a GPU"),
    "gpu_most_watts": _reading("W", 5, "power limit of a GPU"),
    "gpu_celsius": _reading("degrees", 1, "temperature"),
    "gpu_busy": _reading("ratio", 0.05, "time that a GPU was busy"),
    "gpu_others": _reading("ratio", 0.05, "time that it was busy with processes that are not part of the job"),
    "gpu_thermal": _reading("0 or 1", 1, "heat limits the clock of a GPU"),
    "gpu_power": _reading("0 or 1", 1, "the power limit limits the clock of a GPU"),
    "gpu_brake": _reading("0 or 1", 1, "the power supply limits the clock of a GPU"),
    "gpu_slowdown": _reading("0 or 1", 1, "the hardware limits the clock of a GPU, for an unknown reason"),
    "gpu_ecc_corrected": _reading("1/s", 0.1, "corrected memory errors"),
    "gpu_ecc_uncorrected": _reading("errors", 1, "uncorrected memory errors since the driver was loaded"),
    "gpu_link_errors": _reading("1/s", 0.1, "NVLink or xGMI errors"),
    "gpu_replays": _reading("1/s", 0.1, "repeated PCIe transfers"),
    "gpu_lanes": _reading("lanes", 1, "PCIe lanes in use by a GPU"),
}
"""Name of a column before the slash -> what it contains."""


class Moments(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One frame: readings of a host at several times."""

    host: str
    num_processors: int
    times: list[int]
    """In `TIME_UNIT_NS` since the epoch, by the clock of the host; all but the first as differences."""
    columns: dict[str, list[int | None]]
    """Values in units of `Reading.grain`, all but the first of a column as differences; null if nothing was read."""
    others: dict[str, list[int]] = {}
    """Names of the processes that used the most CPU time -> indices into `times`."""


def number_of(path: Path) -> int:
    """Returns the number of a file."""
    return int(path.stem[-3:])


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Returns the files of a host, the oldest first: there are never many, so 000 follows if there is a 999, too."""
    found = sorted(paths)
    if found and number_of(found[-1]) - number_of(found[0]) > NUMBERS // 2:
        found.sort(key=lambda path: number_of(path) < NUMBERS // 2)
    return found


def named(name: str, which: object) -> str:
    """Returns the column name of one of several devices or ranks."""
    return f"{name}/{which}"


def reading_of(column: str) -> tuple[str, str]:
    """Returns the name of the reading, and which device or rank; '' if a host has only one."""
    name, _, which = column.partition("/")
    return name, which


def encoded(host: str, num_processors: int, times_ns: list[int], samples: list[Mapping[str, float]],
            others: list[str]) -> bytes:
    """Encodes readings as a frame.

    Args:
        host: Name of the host.
        num_processors: Processors of the host.
        times_ns: Time of each sample, in ns since the epoch.
        samples: For each time, values by column name.
        others: For each time, the names of the processes that used the most CPU time; '' for none.
    """
    names = {name for sample in samples for name in sample if reading_of(name)[0] in READINGS}
    columns = {name: _differences([_grains(name, sample.get(name)) for sample in samples]) for name in sorted(names)}
    places: dict[str, list[int]] = {}
    for place, text in enumerate(others):
        if text:
            places.setdefault(text, []).append(place)
    times = [time_ns // TIME_UNIT_NS for time_ns in times_ns]
    return framed(MARK, msgspec.msgpack.encode(Moments(
        host=host, num_processors=num_processors, columns=columns, others=places,
        times=[time - before for time, before in zip(times, [0, *times], strict=False)])))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMoments:
    """A decoded frame: `Moments` with absolute times and values."""

    host: str
    num_processors: int
    times_ns: list[int]
    columns: dict[str, list[float | None]]
    others: list[str]


def moments(content: bytes) -> Iterator[tuple[int, ReadMoments]]:
    """Yields the frames in these bytes, each with the offset of its end; damaged frames are skipped."""
    for end, body in frame_contents(MARK, content):
        try:
            yield end, _whole(msgspec.msgpack.decode(body, type=Moments))
        except (msgspec.MsgspecError, IndexError):
            continue


def _whole(found: Moments) -> ReadMoments:
    count, total, times = len(found.times), 0, []
    for difference in found.times:
        total += difference
        times.append(total * TIME_UNIT_NS)
    columns = {name: _summed(name, values) for name, values in found.columns.items()
               if reading_of(name)[0] in READINGS and len(values) == count}
    others = [""] * count
    for text, places in found.others.items():
        for place in places:
            others[place] = text
    return ReadMoments(host=found.host, num_processors=max(found.num_processors, 1), times_ns=times, columns=columns,
                       others=others)


def _grains(column: str, value: float | None) -> int | None:
    return None if value is None else round(value / READINGS[reading_of(column)[0]].grain)


def _differences(values: list[int | None]) -> list[int | None]:
    found: list[int | None] = []
    before = 0
    for value in values:
        found.append(None if value is None else value - before)
        before = before if value is None else value
    return found


def _summed(column: str, values: list[int | None]) -> list[float | None]:
    grain, total = READINGS[reading_of(column)[0]].grain, 0
    found: list[float | None] = []
    for value in values:
        total += value or 0
        found.append(None if value is None else total * grain)
    return found
