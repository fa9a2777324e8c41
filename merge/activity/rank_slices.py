"""Slices of a rank that show what it was doing, from its events table or from a trace of another program.

They are read on demand, because those of a thousand ranks do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.passes import ARRIVALS
from distprof.contract.problems import Unreadable
from distprof.contract.tables import EVENTS, STEPS
from distprof.errors import DataError
from distprof.merge.activity.device.commands import COPIES, KERNEL, RUNTIME
from distprof.merge.activity.markers import GLOO, STEP, TORCH_MODULE
from distprof.merge.clock.model import Clock, RankClock, on_common_clock
from distprof.merge.run.run_model import Rank
from distprof.merge.run.tables import DAMAGE, TYPES, empty, unreadable, wanted_rows
from distprof.merge.scan.chrome_file import ChromeFile, base_ns_of
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE, Scanner
from distprof.merge.scan.gunzip import READ_BYTES
from distprof.merge.scan.json_values import string_of
from distprof.merge.scan.repair import cut_overlong, has_overlong, untimed
from distprof.merge.scan.scanned_columns import NONE, SLICE

CATEGORIES = ("cpu_op", "user_annotation", KERNEL, *COPIES, *RUNTIME)
"""Categories, in lower case, of events that show what a rank is doing."""
PYTHON = "python_function"
"""Category of Python calls; only those of modules are used."""
INTEGERS = {"sequence_number": "Sequence number", "correlation": "correlation"}
"""Columns of integers -> names of the arguments of events that have them."""
SCHEMA = {"name": pl.String(), "category": pl.String(), "start_ns": pl.Int64(), "duration_ns": pl.Int64(),
          "thread": pl.String(), **dict.fromkeys(INTEGERS, pl.Int64()), "process": pl.String()}
"""Columns of slices. For kernels and copies, `process` and `thread` are device and stream."""


def slices_of(rank: Rank, line: RankClock) -> pl.DataFrame | Unreadable | None:
    """Returns the slices of a rank on the common clock.

    Args:
        rank: The rank whose table or trace is read.
        line: Its clock.

    Returns:
        None if the rank has no timeline, or a damaged trace, which merging reports.
    """
    try:
        events = _of_trace(rank) if rank.recorded is None else _read(rank) if rank.has(EVENTS) else None
    except DAMAGE as error:
        return unreadable(rank, EVENTS.file, error)
    if events is None:
        return None
    return events.with_columns(pl.Series("start_ns", line.to_common(events["start_ns"].to_numpy())))


def _read(rank: Rank) -> pl.DataFrame:
    return wanted_rows(rank, EVENTS.only("rank", *SCHEMA), (
        pl.col("category").is_in(CATEGORIES) & ~pl.col("name").str.starts_with(STEP)
        & ~pl.col("name").str.starts_with(GLOO))).select(list(SCHEMA))


def _of_trace(rank: Rank) -> pl.DataFrame | None:
    if rank.trace is None:
        return None
    scanner = ENGINE.new_scanner(integers=tuple(INTEGERS.values()))
    file = ChromeFile(rank.trace.name, ChunkReader(rank.trace, chunk_bytes=READ_BYTES), scanner)
    try:
        found = list(_chunks(file, scanner))
    except DataError:
        return None  # merging reports it
    if not found:
        return pl.DataFrame(schema=SCHEMA)
    names = [string_of(text) for text in scanner.names.texts()]
    threads = [text.decode("utf-8", "replace") for text in scanner.threads.texts()]
    categories = [text.decode("utf-8", "replace").lower() for text in scanner.categories.texts()]
    columns = _with_times([np.concatenate(parts) for parts in zip(*found, strict=True)], categories)
    words = [pl.Series(known, dtype=pl.String).gather(column) for known, column in zip(
        (names, categories, threads, [one.split(" ", 1)[0] for one in threads]), (*columns[:3], columns[2]),
        strict=True)]  # threads are named by process and thread
    start, duration, *integers = columns[3:]
    calls = words[0].filter(words[1].is_in(["cuda_runtime", "cuda_driver"]))
    if has_overlong(calls.unique().drop_nulls().to_list()):
        on_device = np.flatnonzero(words[1].is_in((KERNEL, *COPIES)).to_numpy())
        duration[on_device], _ = cut_overlong(*(column[on_device] for column in (columns[2], start, duration)))
    frame = pl.DataFrame({"name": words[0], "category": words[1], "start_ns": start + base_ns_of(file.metadata),
                          "duration_ns": duration, "process": words[3], "thread": words[2],
                          **dict(zip(INTEGERS, integers, strict=True))})
    unknown = [pl.when(pl.col(name) != NONE).then(name).alias(name) for name in INTEGERS]
    return frame.with_columns(unknown).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _with_times(columns: Sequence[Any], categories: Sequence[str]) -> list[Any]:
    """Drops slices of devices without valid times."""
    is_device = np.array([text in (KERNEL, *COPIES) for text in categories] + [False], bool)
    rows = np.flatnonzero(is_device[columns[1]])
    lost = rows[untimed(columns[3][rows], columns[4][rows])]
    return [np.delete(column, lost) for column in columns]


def _chunks(file: ChromeFile, scanner: Scanner) -> Iterator[list[Any]]:
    """Yields name, category, thread, start, duration and integers of the slices that are used."""
    is_module = np.zeros(0, bool)
    for _ in file.scanned():
        categories = [text.decode("utf-8", "replace").lower() for text in scanner.categories.texts()]
        held, python = (np.array([text in wanted for text in categories] + [False], bool)
                        for wanted in (CATEGORIES, (PYTHON,)))
        start, duration, category, name = (scanner.column(key) for key in ("ts_ns", "dur_ns", "category", "name"))
        if python.any():
            is_module = np.append(is_module, [text.startswith(TORCH_MODULE.encode())
                                              for text in scanner.names.texts(len(is_module))]).astype(bool)
            held_here = held[category] | (python[category] & np.append(is_module, False)[name])
        else:
            held_here = held[category]
        rows = np.flatnonzero(held_here & (scanner.column("phase") == SLICE) & (start != NONE) & (duration != NONE))
        yield [np.array(column[rows]) for column in (
            name, category, scanner.column("thread"), start, duration,
            *(scanner.integers[key] for key in INTEGERS.values()))]


def step_windows(clock: Clock, recorded: pl.DataFrame | None, drawn: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Returns start, end, samples and pass of the steps with recorded collectives, of each rank, on the common clock.

    Args:
        clock: The clock of the run.
        recorded: Its `STEPS`; None for traces of other programs.
        drawn: `steps_drawn` of each trace of another program.
    """
    if recorded is not None:
        seen = recorded.filter(pl.col("pass").is_in(("trace", ARRIVALS)))
        return on_common_clock(clock, seen, ("start_ns", "end_ns"))
    return pl.concat([empty(STEPS).select(STEP_COLUMNS), *drawn])


STEP_COLUMNS = ("rank", "step", "start_ns", "end_ns", "duration_ns", "samples", "elements", "run_queue_ns", "cpu_ns",
                "pass")
"""Columns of steps."""
UNKNOWN = ("samples", "elements", "run_queue_ns", "cpu_ns")
"""Columns of steps that are unknown in traces of other programs."""


def steps_drawn(rank: int, events: pl.DataFrame) -> pl.DataFrame:
    """Returns the steps in a trace of another program, marked by `ProfilerStep#`; without marks, the trace is one
    step."""
    drawn = events.filter(pl.col("name").str.starts_with(STEP), pl.col("category") == "user_annotation")
    steps = drawn.select(step=pl.col("name").str.strip_prefix(STEP).cast(pl.Int64, strict=False), start_ns="start_ns",
                         end_ns=pl.col("start_ns") + pl.col("duration_ns")).drop_nulls().unique("step").sort("step")
    if steps.is_empty():
        steps = events.select(step=pl.lit(0, pl.Int64), start_ns=pl.col("start_ns").min(),
                              end_ns=(pl.col("start_ns") + pl.col("duration_ns")).max()).head(1)
    return steps.select(rank=pl.lit(rank, pl.Int64), step="step", start_ns="start_ns", end_ns="end_ns",
                        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
                        **dict.fromkeys(UNKNOWN, pl.lit(None, TYPES["int64"])), **{"pass": pl.lit("trace")})


HELD = 2_000_000
"""At most this many slices are kept in memory, of about 100 bytes each; then most runs are read only once."""


class Timelines(Mapping[int, pl.DataFrame]):
    """Slices by rank, on the common clock. Raises DataError if those of a rank can no longer be read."""

    def __init__(self, ranks: Mapping[int, Rank], clock: Clock) -> None:
        """Takes ranks whose timeline could be read."""
        self._ranks, self._clock = ranks, clock
        self._held: dict[int, pl.DataFrame] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __getitem__(self, rank: int) -> pl.DataFrame:
        if rank not in self._held:
            found = slices_of(self._ranks[rank], self._clock.line(rank))
            if not isinstance(found, pl.DataFrame):
                why = "none" if found is None else found.detail
                raise DataError(f"the timeline of rank {rank} changed while it was being read: {why}",
                                hint="files changed while they were being read: try again")
            self._held[rank] = found
            while len(self._held) > 1 and sum(map(len, self._held.values())) > HELD:
                del self._held[next(iter(self._held))]
        return self._held[rank]
