"""Reads the slices of one rank's timeline, with what operators need of them, into arrays sorted by thread and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.contract.problems import TraceDamaged
from distprof.merge.activity.markers import TORCH_MODULE
from distprof.merge.match.backend_names import RUNTIME_CATEGORIES
from distprof.merge.operators.timeline.nesting import in_order
from distprof.merge.run.run_model import Rank
from distprof.merge.run.timelines import damages_of
from distprof.merge.scan.chrome_file import ChromeFile, base_ns_of
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Interner, Scanner
from distprof.merge.scan.gunzip import READ_BYTES
from distprof.merge.scan.json_values import string_of
from distprof.merge.scan.repair import cut_overlong, has_overlong, untimed
from distprof.merge.scan.scanned_columns import NONE, SLICE

OPERATOR, ANNOTATION, RUNTIME, PYTHON, KERNEL, MEMCPY, MEMSET = range(7)
TYPES = ("operator", "annotation", "runtime", "python", "kernel", "memcpy", "memset")
"""What a slice is, by number."""
COPIES = ("memcpy", "memset")
NUM_HOST = 4
"""Types below this run on a thread of the host, the others on a device."""
CATEGORIES = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION, "kernel": KERNEL,
    "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET,
    **dict.fromkeys(RUNTIME_CATEGORIES, RUNTIME),
}
"""Categories of torch.profiler in lower case -> type."""
CALLS = "python_function"
"""The category of Python calls, with `with_stack=True`."""
INTEGERS = {"external": "External id", "correlation": "correlation", "sequence": "Sequence number", "copied": "bytes"}
TEXTS = {"shapes": "Input Dims", "dtypes": "Input type"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """Slices of a rank, sorted by thread, start, and longest first. Each array has a value per slice."""

    name: Integers
    """Index into `names`."""
    type: Integers
    """Index into `TYPES`."""
    thread: Integers
    """A number for each thread or stream; see `threads`."""
    start_ns: Integers
    """On the rank's clock; ns since the epoch."""
    duration_ns: Integers
    external: Integers
    """Id by which the profiler joins kernels and operators; `NONE` if missing, as in the next two."""
    correlation: Integers
    sequence: Integers
    copied: Integers
    """Bytes that a copy or a fill moves; `NONE` if missing."""
    shapes: Integers
    """Index into `texts`, -1 if missing; `dtypes` likewise."""
    dtypes: Integers
    names: Sequence[str]
    texts: Sequence[str]
    """JSON, or what is left of it."""
    base_ns: int
    """What was added to the times of the file."""
    num_bad: int
    """Number of slices left out: their duration is negative or not a number, or they are on a device and `untimed`."""
    more: Mapping[str, Integers]
    """What `Wanted` requested, by its key: integers, or indices into `texts`."""
    place: Integers
    """Index of each slice among those of the file."""
    metadata: Mapping[str, Any]
    """Keys beside the events."""
    threads: Sequence[str] = ()
    """Name of each thread: process and thread, which for slices of a device are device and stream."""
    problems: Sequence[TraceDamaged] = ()
    """What is lost of the file."""

    @property
    def end_ns(self) -> Integers:
        return self.start_ns + self.duration_ns

    def where(self, held: Flags) -> RankTimeline:
        """Returns the timeline with the slices for which `held` is true."""
        arrays = {name: getattr(self, name)[held] for name in ARRAYS}
        return replace(self, more={key: values[held] for key, values in self.more.items()}, **arrays)


ARRAYS = ("name", "type", "thread", "start_ns", "duration_ns", "external", "correlation", "sequence", "copied",
          "shapes", "dtypes", "place")
"""Fields with a value per slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What else a timeline should have."""

    python: bool = False
    """Whether Python calls are slices."""
    modules: bool = False
    """Whether Python calls that are calls of modules are slices: see `with_modules`."""
    integers: Sequence[str] = ()
    """Keys of `args` with integers; `texts` has those with texts."""
    texts: Sequence[str] = ()


NOTHING = Wanted()
STRIDES, VALUES = "Input Strides", "Concrete Inputs"
"""Keys of what else is known about inputs, also as JSON. The values are those of inputs that are not tensors."""


def calls_of_modules(timeline: RankTimeline) -> Flags:
    """Returns the slices that torch.profiler draws for calls of modules (`TORCH_MODULE`)."""
    is_module = np.array([*(name.startswith(TORCH_MODULE) for name in timeline.names), False], bool)
    found: Flags = is_module[timeline.name] & np.isin(timeline.type, (PYTHON, ANNOTATION))
    return found


def with_modules(timeline: RankTimeline) -> RankTimeline:
    """Returns the timeline without Python calls, except those of modules, which become annotations."""
    kept = (timeline.type != PYTHON) | calls_of_modules(timeline)
    found = timeline if kept.all() else timeline.where(kept)
    return replace(found, type=np.where(found.type == PYTHON, ANNOTATION, found.type))


class AlsoRead(Protocol):
    """Reads something else from a trace in the same pass."""

    @property
    def keys(self) -> Sequence[str]:
        """Keys of `args` with integers."""

    def take(self, scanner: Scanner) -> None:
        """Called after each scan; threads have the numbers of the timeline."""


def read_timeline(rank: Rank, also: AlsoRead | None = None, wanted: Wanted = NOTHING) -> RankTimeline:
    """Reads the trace of a rank to its end.

    Args:
        rank: A rank with a trace.
        also: Also gets what was scanned.
        wanted: What each slice should have in addition.

    Raises:
        DataError: It is not a trace.
    """
    assert rank.trace is not None
    integers = (*INTEGERS.values(), *wanted.integers)
    texts = (*TEXTS.values(), *wanted.texts)
    scanner = ENGINE.new_scanner(integers=(*integers, *(also.keys if also else ())), texts=texts)
    reader = ChunkReader(rank.trace, chunk_bytes=READ_BYTES)
    file = ChromeFile(rank.trace.name, reader, scanner)
    parts, num_events = TimelineParts(scanner, wanted), 0
    for _ in file.scanned():
        num_events += scanner.num_rows
        if also is not None:
            also.take(scanner)
        parts.take()
    found = parts.timeline(base_ns_of(file.metadata), file.metadata)
    return replace(found, problems=[*damages_of(rank.number, rank.trace, reader.damage, file.losses, num_events,
                                                parts.num_overlong)])


class TimelineParts:
    """Collects slices scan by scan."""

    def __init__(self, scanner: Scanner, wanted: Wanted = NOTHING) -> None:
        """Takes a scanner that has columns for `INTEGERS`, `TEXTS` and what is wanted."""
        self._scanner, self._more = scanner, (*wanted.integers, *wanted.texts)
        self._integers = dict(zip((*INTEGERS, *wanted.integers), (*INTEGERS.values(), *wanted.integers), strict=True))
        self._texts = dict(zip((*TEXTS, *wanted.texts), (*TEXTS.values(), *wanted.texts), strict=True))
        self._wanted = wanted
        self._kinds = CATEGORIES | ({CALLS: PYTHON} if wanted.python or wanted.modules else {})
        self._is_module = np.zeros(0, bool)
        self._parts = [[np.empty(0, np.int64)] * (5 + len(self._integers) + len(self._texts))]
        self._num_bad = 0
        self.num_overlong = 0
        """Number of device slices that `timeline` cut."""

    def take(self) -> None:
        """Adds the slices of the last scan."""
        part, bad = _wanted(self._scanner, self._kinds, [*self._integers.values()], [*self._texts.values()])
        if not self._wanted.python and (python := part[1] == PYTHON).any():
            self._is_module = np.append(self._is_module, [
                text.startswith(TORCH_MODULE.encode())
                for text in self._scanner.names.texts(len(self._is_module))]).astype(bool)
            held = ~python | np.append(self._is_module, False)[part[0]]
            part = [column[held] for column in part]
        self._parts.append(part)
        self._num_bad += bad

    def timeline(self, base_ns: int, metadata: Mapping[str, Any]) -> RankTimeline:
        """Returns all slices.

        Args:
            base_ns: Added to all times of the file.
            metadata: Its keys beside the events.
        """
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        on_device = np.flatnonzero(columns[1] >= NUM_HOST)
        lost = on_device[untimed(*(columns[place][on_device] for place in (3, 4)))]
        kept = np.delete(np.arange(len(columns[0])), lost)
        columns = [column[kept] for column in columns]
        words = list(map(string_of, self._scanner.names.texts()))
        calls = np.unique(columns[0][columns[1] == RUNTIME])
        if has_overlong(words[number] for number in calls[calls >= 0].tolist()):
            on_device = np.flatnonzero(columns[1] >= NUM_HOST)
            columns[4][on_device], cut = cut_overlong(*(columns[place][on_device] for place in (2, 3, 4)))
            self.num_overlong = len(cut)
        place = in_order(*columns[2:5])
        names = ("name", "type", "thread", "start_ns", "duration_ns", *self._integers, *self._texts)
        found: dict[str, Any] = {name: column[place] for name, column in zip(names, columns, strict=True)}
        found["start_ns"] += base_ns
        more = {key: found.pop(key) for key in self._more}
        return RankTimeline(
            **found, names=words,
            texts=_decoded(self._scanner.texts), base_ns=base_ns,
            num_bad=self._num_bad + len(lost), more=more, place=kept[place], metadata=metadata,
            threads=[text.decode("utf-8", "replace") for text in self._scanner.threads.texts()])


def _wanted(scanner: Scanner, kinds: Mapping[str, int], integers: Sequence[str], texts: Sequence[str]) -> (
        tuple[list[Integers], int]):
    """Returns columns of the last scan's slices that have one of the types, and how many lacked a usable time."""
    types = np.array([kinds.get(text.decode("utf-8", "replace").lower(), -1)
                      for text in scanner.categories.texts()] + [-1], np.int64)
    kind = types[scanner.column("category")]
    start, duration = scanner.column("ts_ns"), scanner.column("dur_ns")
    held = (kind >= 0) & (scanner.column("phase") == SLICE)
    good = held & (start != NONE) & (duration >= 0)
    rows = np.flatnonzero(good)
    columns = (scanner.column("name"), kind, scanner.column("thread"), start, duration,
               *(scanner.integers[key] for key in integers), *(scanner.interned[key] for key in texts))
    return [column[rows].astype(np.int64) for column in columns], int(np.count_nonzero(held & ~good))


def _decoded(words: Interner) -> list[str]:
    return [text.decode("utf-8", "replace") for text in words.texts()]
