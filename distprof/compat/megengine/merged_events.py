"""Merges several timelines into one, on a common clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from distprof.errors import DataError, OutputError
from distprof.files import told, write_whole

NAME = re.compile(r"[0-9]+\.chrome_timeline\.json")
MERGED = "merge.chrome_timeline.json"
FLOW = ("s", "t", "f")
ASYNC = ("b", "n", "e", "S", "T", "p", "F")
# a double cannot represent nanoseconds since the epoch
DECODER = msgspec.json.Decoder(float_hook=Decimal)
ENCODER = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Content of one file."""

    path: Path
    zero_ns: int | None
    """Time of ts 0; None if the file does not state it."""
    events: Sequence[dict[str, Any]]


def merge_trace_events(directory: str | Sequence[str], target: str | None = None) -> str:
    """Merges timelines of several processes.

    Files may begin with an event `Metadata` (MegEngine 1.5), have `metadata` next to the events (since 1.6), or be an
    array of events (1.3 and 1.4). The times of each file are shifted by the difference of its ts 0 from the earliest
    one. Processes with the same id get different ids, as do arrows.

    Args:
        directory: A folder with `<pid>.chrome_timeline.json` files, or a list of file names without
            `.chrome_timeline.json`.
        target: Name of the merged file without `.chrome_timeline.json`; by default `merge` in the folder.

    Returns:
        The path of the merged file.

    Raises:
        DataError: There is nothing to merge, or a file is not a timeline.
        OutputError: The merged file cannot be written.
    """
    paths, out = _places(directory, target)
    found = [_read(path) for path in paths]
    if not found:
        raise DataError(f"no files like 123.chrome_timeline.json in {directory}",
                        hint="Profiler(path=..., formats=['chrome_timeline.json']) writes them")
    known = [one.zero_ns for one in found if one.zero_ns is not None]
    zero_ns = min(known, default=0)
    events = list[dict[str, Any]]()
    pids = _Numbers()
    for number, one in enumerate(found):
        shift_ns = 0 if one.zero_ns is None else one.zero_ns - zero_ns
        events += (_moved(event, shift_ns, number, pids) for event in one.events)
        events += pids.labels(number, one.path)
    whole = {"metadata": {"localTime": str(zero_ns)}, "baseTimeNanoseconds": zero_ns, "traceEvents": events}
    with told(out):
        write_whole(out, lambda temporary: temporary.write_bytes(ENCODER.encode(whole)))
    return str(out)


def _places(directory: str | Sequence[str], target: str | None) -> tuple[list[Path], Path]:
    if isinstance(directory, str | Path):
        folder = Path(directory)
        paths = sorted(path for path in folder.glob("*.chrome_timeline.json") if NAME.fullmatch(path.name))
        return paths, folder / MERGED if target is None else Path(f"{target}.chrome_timeline.json")
    if target is None:
        raise OutputError("merging a list of timelines needs a target",
                          hint="merge_trace_events(['a', 'b'], 'merged')")
    return [Path(f"{one}.chrome_timeline.json") for one in directory], Path(f"{target}.chrome_timeline.json")


def _read(path: Path) -> Timeline:
    try:
        content = DECODER.decode(path.read_bytes())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DataError(f"{path} is not a timeline: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    about, events = (content.get("metadata"), content.get("traceEvents")) if isinstance(content, dict) else (
        None, content)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise DataError(f"no list of events in {path}")
    zero_ns = _ns(about.get("localTime"), 1) if isinstance(about, dict) else None
    kept = list[dict[str, Any]]()
    for event in events:
        if event.get("name") == "Metadata":
            zero_ns = _ns((event.get("args") or {}).get("localTime"), 1000)
        else:
            kept.append(event)
    return Timeline(path=path, zero_ns=zero_ns, events=kept)


def _ns(value: Any, factor: int) -> int | None:
    try:
        return round(Fraction(value) * factor)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None


class _Numbers:
    """Ids of processes in the merged file."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any], Any] = {}
        self._taken = set[Any]()

    def of(self, file: int, pid: object) -> Any:
        """Returns the id itself if no other file has it, or else an unused one."""
        key = (file, pid)
        if key not in self._known:
            free = pid
            while free in self._taken:
                free = len(self._taken) + (1 << 22)  # above Linux's process ids
                while free in self._taken:
                    free += 1
            self._taken.add(free)
            self._known[key] = free
        return self._known[key]

    def labels(self, file: int, path: Path) -> Iterator[dict[str, Any]]:
        """Yields events that name the original id and file of each process whose id was changed."""
        for (of_file, pid), free in self._known.items():
            if of_file == file and free != pid:
                yield {"ph": "M", "name": "process_labels", "pid": free, "args": {
                    "labels": f"process {pid} of {path.name}"}}


def _moved(event: dict[str, Any], shift_ns: int, file: int, pids: _Numbers) -> dict[str, Any]:
    found = dict(event)
    if "pid" in event:
        found["pid"] = pids.of(file, event["pid"])
    if "ts" in event and isinstance(event["ts"], int | Decimal):
        found["ts"] = _shifted(event["ts"], shift_ns)
    if "id" in event and event.get("ph") in (*FLOW, *ASYNC):
        found["id"] = f"{file}.{event['id']}"
    return found


def _shifted(ts: int | Decimal, shift_ns: int) -> Decimal:
    return Decimal(round(Fraction(ts) * 1000) + shift_ns).scaleb(-3)
