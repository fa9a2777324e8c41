"""Slices of one rank's timeline with what operators need of them, as arrays in the order of thread and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from distprof.merge.run.run_model import Rank
from distprof.merge.scan.chrome_file import ChromeFile, base_ns_of
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Interner, Scanner
from distprof.merge.scan.event_phases import SLICE
from distprof.merge.scan.gunzip import READ_BYTES
from distprof.merge.scan.scanned_columns import NONE

OPERATOR, ANNOTATION, RUNTIME, KERNEL, MEMCPY, MEMSET = range(6)
TYPES = ("operator", "annotation", "runtime", "kernel", "memcpy", "memset")
"""What a slice is, by number."""
NUM_HOST = 3
"""Types below run on a thread of the host, the others on a device."""
CATEGORIES = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION, "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME, "runtime": RUNTIME, "kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY,
    "gpu_memset": MEMSET, "memset": MEMSET,
}
"""Categories of torch.profiler, in lower case."""
INTEGERS = {"external": "External id", "correlation": "correlation", "sequence": "Sequence number",
            "function": "Record function id"}
TEXTS = {"shapes": "Input Dims", "dtypes": "Input type"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """Slices of a rank, sorted by thread, start, and longest first. Each array has a value a slice."""

    name: Any
    """Number of `names`."""
    type: Any
    """Number of `TYPES`."""
    thread: Any
    """A number for each thread or stream."""
    start_ns: Any
    """The rank's clock; ns since the epoch."""
    duration_ns: Any
    external: Any
    """What the profiler joins kernels and operators by; `NONE` where there is none, as in the next three."""
    correlation: Any
    sequence: Any
    function: Any
    """Number of the call, which execution traces have as well."""
    shapes: Any
    """Number of `texts`, -1 without."""
    dtypes: Any
    names: Sequence[str]
    texts: Sequence[str]
    """JSON, or what is left of it."""
    base_ns: int
    """What was added to the times of the file."""
    num_bad: int
    """Slices that were left out: their duration is negative or no number."""

    @property
    def end_ns(self) -> Any:
        return self.start_ns + self.duration_ns


class AlsoRead(Protocol):
    """What else is read of a trace in the same go."""

    @property
    def keys(self) -> Sequence[str]:
        """Keys of `args` with integers."""

    def take(self, scanner: Scanner) -> None:
        """Called after each scan; threads have the numbers of the timeline."""


def read_timeline(rank: Rank, also: AlsoRead | None = None) -> RankTimeline:
    """Reads the trace of a rank to its end.

    Args:
        rank: It has a trace.
        also: Gets what was scanned as well.

    Raises:
        DataError: It is no trace.
    """
    assert rank.trace is not None
    integers = (*INTEGERS.values(), *(also.keys if also else ()))
    scanner = ENGINE.new_scanner(integers=integers, texts=tuple(TEXTS.values()))
    file = ChromeFile(rank.trace.name, ChunkReader(rank.trace, chunk_bytes=READ_BYTES), scanner)
    parts, num_bad = list[list[Any]](), 0
    for _ in file.scanned():
        if also is not None:
            also.take(scanner)
        part, bad = _wanted(scanner)
        parts.append(part)
        num_bad += bad
    parts.append([np.empty(0, np.int64)] * 11)
    name, kind, thread, start, duration, external, correlation, sequence, function, shapes, dtypes = (
        np.concatenate(columns) for columns in zip(*parts, strict=True))
    order, base_ns = np.lexsort((-duration, start, thread)), base_ns_of(file.metadata)
    return RankTimeline(
        name=name[order], type=kind[order], thread=thread[order], start_ns=start[order] + base_ns,
        duration_ns=duration[order], external=external[order], correlation=correlation[order],
        sequence=sequence[order], function=function[order], shapes=shapes[order], dtypes=dtypes[order],
        names=_decoded(scanner.names), texts=_decoded(scanner.texts), base_ns=base_ns, num_bad=num_bad)


def _wanted(scanner: Scanner) -> tuple[list[Any], int]:
    """Columns of the slices of the last scan that have one of the types, and how many had no duration."""
    types = np.array([CATEGORIES.get(text.decode("utf-8", "replace").lower(), -1)
                      for text in scanner.categories.texts()] + [-1], np.int64)
    kind = types[scanner.column("category")]
    start, duration = scanner.column("ts_ns"), scanner.column("dur_ns")
    held = (kind >= 0) & (scanner.column("phase") == SLICE)
    good = held & (start != NONE) & (duration >= 0)
    rows = np.flatnonzero(good)
    columns = (scanner.column("name"), kind, scanner.column("thread"), start, duration,
               *(scanner.integers[key] for key in INTEGERS.values()),
               *(scanner.interned[key] for key in TEXTS.values()))
    return [column[rows].astype(np.int64) for column in columns], int(np.count_nonzero(held & ~good))


def _decoded(words: Interner) -> list[str]:
    return [text.decode("utf-8", "replace") for text in words.texts()]
