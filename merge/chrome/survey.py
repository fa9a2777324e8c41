"""Makes the first pass over a rank's trace, which finds what must be known before its first event is written."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from typing import Any

import msgspec
import numpy as np

from distprof.arrays import Integers
from distprof.merge.chrome.numbering import DeviceProcesses
from distprof.merge.chrome.work_folder import Attempt, StillWanted
from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.layout.finder import LayoutFinder
from distprof.merge.layout.layout import Layout
from distprof.merge.scan.chrome_file import ChromeFile, Losses, base_ns_of
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Scanner
from distprof.merge.scan.gunzip import READ_BYTES, Damage
from distprof.merge.scan.repair import repaired
from distprof.merge.scan.scanned_columns import META, NONE, SLICE, Text
from distprof.merge.scan.trace_file import TraceFile

ALL = EventSelection()
NO_LAYOUT = Layout()
SHORTEST = 7
"""Minimum number of bytes of an event that is not empty."""
NAMES_OF = {"process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index",
            "thread_name": "name", "thread_sort_index": "sort_index"}
"""Metadata events that the merge writes anew, and the argument that matters."""
ALLOCATION = b"[memory]"
"""Name of torch.profiler's events of an allocator."""
UNUSUAL = re.compile(rb"\\u|[0-9]{19}")
"""Matches JSON that decoders interpret differently: escaped surrogates and large integers."""


_PREFIXED = re.compile(r"\[[^\]]{1,64}\] ?\d")
"""Matches `[TP00-DP01] 2848`, from a trace that a tool merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingEvent:
    """A metadata event that names a process or thread."""

    kind: str
    """A key of `NAMES_OF`."""
    pid: str
    tid: str
    value: Any
    """Value of the argument that matters; None if it is missing."""


@dataclass(slots=True, kw_only=True)
class Survey:
    """What was found in a file."""

    metadata: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    damage: Damage | None = None
    """What is wrong with the file around the text."""
    num_bytes: int = 0
    num_events: int = 0
    """Whole events, metadata included."""
    bad_times: int = 0
    """Events without a phase, or without a time that is a finite number; they are left out."""
    base_ns: int = 0
    """Added to every time of the file."""
    first_ns: int | None = None
    """Time of the first event, base included; events a day or more before all others do not count."""
    last_ns: int | None = None
    threads: list[tuple[str, str]] = field(default_factory=list)
    """Process and thread as the file names them, JSON text, in order of appearance."""
    meta: list[NamingEvent] = field(default_factory=list)
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    """Steps that torch.profiler marked: name, start, end; base included."""
    has_several: bool = False
    """True if its processes or their numbers show that it has several ranks, because another tool merged them."""
    num_allocations: int = 0
    """Upper bound on the events of the allocator, including frees."""
    layout: Layout = field(default_factory=Layout)
    """Which events cannot stay as they are."""
    num_numbers: int = 0
    """Upper bound on the processes and threads that need numbers."""
    folder: Path | None = None
    """For temporary files, if it has to be made again."""
    laid_down: Path | None = None
    """File with threads, meta and layout, which are empty here because only the second pass needs them."""

    def laid_in(self, path: Path) -> Survey:
        """Moves what only the second pass needs to a file, because the surveys of all ranks are in memory at once."""
        attempt = Attempt(path, path.parent)
        pickle.dump((self.threads, self.meta, self.layout), attempt.file, pickle.HIGHEST_PROTOCOL)
        attempt.keep()
        return replace(self, metadata={}, threads=[], meta=[], layout=NO_LAYOUT, laid_down=path)

    def whole(self) -> Survey:
        """Returns the survey including what is in its file."""
        if self.laid_down is None:
            return self
        threads, meta, layout = pickle.loads(self.laid_down.read_bytes())
        return replace(self, threads=threads, meta=meta, layout=layout, laid_down=None)


def survey_trace(trace: TraceFile, selection: EventSelection = ALL, *, base_ns: int = 0, strict: bool = False,
                 folder: Path | None = None) -> Survey:
    """Reads a trace once.

    Args:
        trace: The trace.
        selection: What of it will be written.
        base_ns: Added to its times before events are selected; as found by an earlier survey.
        strict: Whether to read `args` as well, where damage may hide.
        folder: For temporary files, if the trace is long.

    Raises:
        DataError: It is not a Chrome trace.
    """
    scanner = ENGINE.new_scanner(skims=not strict)
    if folder is not None and not folder.is_dir():  # it is on another host
        folder = None
    reader = ChunkReader(trace, chunk_bytes=READ_BYTES)
    file = ChromeFile(trace.name, reader, scanner)
    survey = Survey(metadata=file.metadata, losses=file.losses, folder=folder)
    with LayoutFinder(scanner, selection, base_ns, folder) as rows:
        _read(file, survey, rows)
        survey.num_bytes, survey.damage = file.num_bytes, reader.damage
        span, survey.layout, survey.threads = rows.span(), rows.layout(), rows.threads.names
    of_cpu = {meta.pid for meta in survey.meta if (meta.kind, meta.value) == ("process_labels", "CPU")}
    survey.has_several = len(of_cpu) > 1 or any(_PREFIXED.match(pid) for pid, _ in survey.threads)
    survey.num_numbers = len(survey.threads) * (1 + survey.layout.num_lanes) + 64
    if span is not None:
        survey.first_ns, survey.last_ns = (at + survey.base_ns for at in span)
    return survey


def _read(file: ChromeFile, survey: Survey, rows: LayoutFinder) -> None:
    scanner, steps, wanted = file.scanner, _Steps(file.scanner), StillWanted(survey.folder)
    devices = DeviceProcesses(scanner)
    for text in file.scanned():
        wanted.look()
        phase = scanner.column("phase")
        survey.bad_times += int(np.count_nonzero(timeless(scanner)))
        survey.meta += _meta(scanner, text, np.flatnonzero(phase == META))
        steps.look()
        devices.look(text)
        rows.add(text, survey.num_events)
        survey.num_events += scanner.num_rows
    survey.base_ns = base_ns_of(file.metadata)
    labelled = [meta.pid for meta in survey.meta if meta.kind == "process_labels"]
    survey.meta += [NamingEvent(kind="process_labels", pid=pid, tid="0", value=label)
                    for pid, label in devices.labels(labelled)]
    survey.num_allocations = steps.num_allocations
    survey.steps = [(step, start + survey.base_ns, end + survey.base_ns) for step, start, end in steps.found]


class _MetaEvent(msgspec.Struct):
    """The fields of a metadata event that are read."""

    name: Any = None
    pid: Any = ""
    tid: Any = ""
    args: Any = None


_META = msgspec.json.Decoder(_MetaEvent)


def _meta(scanner: Scanner, text: Text, rows: Integers) -> Iterator[NamingEvent]:
    for row in rows.tolist():
        event = _meta_event(bytes(text[scanner.arrays["start"][row]:scanner.arrays["end"][row]]))
        if event is None or not isinstance(event.name, str) or not isinstance(event.args, dict):
            continue
        if event.name in NAMES_OF:
            # there may be many, so each text is kept once
            yield NamingEvent(kind=intern(event.name), pid=intern(str(event.pid)), tid=intern(str(event.tid)),
                              value=event.args.get(NAMES_OF[event.name]))


def _meta_event(text: bytes) -> _MetaEvent | None:
    if not UNUSUAL.search(text):
        try:
            return _META.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    try:
        found = json.loads(repaired(text))
    except (ValueError, RecursionError):
        return None
    return _MetaEvent(**{key: found[key] for key in _MetaEvent.__struct_fields__ if key in found})


def timeless(scanner: Scanner) -> Any:
    """Returns per row (bool) the events that no viewer accepts, for lack of a phase or a time; not empty ones."""
    phase, lacks = scanner.column("phase"), scanner.column("ts_ns") == NONE
    if phase.all():  # nearly always
        return lacks & (phase != META)
    is_empty = scanner.column("end") - scanner.column("start") < SHORTEST
    return np.where(phase == 0, ~is_empty, lacks & (phase != META))


class _Steps:
    """Finds the slices by which torch.profiler marks steps, and counts events of its allocators."""

    def __init__(self, scanner: Scanner) -> None:
        self.found: list[tuple[str, int, int]] = []
        self._scanner = scanner
        self.num_allocations = 0
        self._known = 0
        self._names: dict[int, str] = {}
        self._allocation: int | None = None

    def look(self) -> None:
        """Examines the rows of the last scan."""
        scanner = self._scanner
        for number, name in enumerate(scanner.names.texts(self._known), self._known):
            if name.startswith(b"ProfilerStep#"):
                self._names[number] = name.decode("utf-8", "replace")
            elif name == ALLOCATION:
                self._allocation = number
        self._known = len(scanner.names)
        if self._allocation is not None:
            self.num_allocations += int(np.count_nonzero(scanner.column("name") == self._allocation))
        if not self._names:
            return
        names, starts, durations = (scanner.column(column) for column in ("name", "ts_ns", "dur_ns"))
        is_step = np.zeros(self._known, bool)
        is_step[list(self._names)] = True
        for row in np.flatnonzero(is_step.take(names) & (scanner.column("phase") == SLICE)).tolist():
            if starts[row] != NONE and durations[row] != NONE:
                self.found.append((self._names[int(names[row])], int(starts[row]), int(starts[row] + durations[row])))
