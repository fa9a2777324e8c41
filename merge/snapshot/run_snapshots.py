"""The snapshots of all ranks, one read after the other: of each remains what is shown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from distprof.contract.problems import Unreadable
from distprof.errors import DataError, UsageError
from distprof.merge.snapshot.allocation_rows import NUMBERS
from distprof.merge.snapshot.device_memory import DeviceMemory, device_memory
from distprof.merge.snapshot.snapshot_file import read_snapshot
from distprof.units import spans

BY = ("line", "stack", "stream", "rank", "device")
"""What `--by` takes."""
TENSORS = 50
"""Of the largest at a peak that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDevice:
    """A device of a rank."""

    memory: DeviceMemory
    num_alive: int
    """Allocations at the peak."""
    largest: pl.DataFrame
    """Of those, as `allocation_rows.SCHEMA`."""
    settings: str | None
    num_other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshots:
    """What was found."""

    devices: Sequence[OneDevice]
    groups: pl.DataFrame
    """The columns of `by` and `NUMBERS`, largest at the peak first."""
    rows: pl.DataFrame | None
    """All allocations, where they were asked for."""
    problems: Sequence[Unreadable]


def run_snapshots(files: Mapping[int, Path], *, by: Sequence[str], ranks: Sequence[int] = (), top: int = TENSORS,
                  with_rows: bool = False) -> RunSnapshots:
    """Reads one file after the other.

    Args:
        files: Rank -> its snapshot.
        by: Of `BY`.
        ranks: Only these; all without.
        top: Tensors kept of each device.
        with_rows: True to keep every allocation.

    Raises:
        DataError: None can be read.
        UsageError: There is no such rank or key.
    """
    _check(files, by, ranks)
    devices, parts, rows, problems = list[OneDevice](), list[pl.DataFrame](), list[pl.DataFrame](), list[Unreadable]()
    for rank in ranks or files:
        try:
            snapshot = read_snapshot(files[rank])
        except DataError as error:
            if len(files) == 1:
                raise
            problems.append(Unreadable(rank=rank, detail=str(error)))
            continue
        for device in snapshot.devices:
            memory, allocations = device_memory(snapshot, rank, device)
            devices.append(OneDevice(memory=memory, num_alive=allocations.num_at_peak, settings=snapshot.settings,
                                     largest=allocations.largest(top), num_other=snapshot.num_other))
            parts.append(_added([allocations.sums()], by))
            rows += [allocations.frame()] if with_rows else []
            del allocations
    if not devices:
        raise _nothing(files, problems)
    return RunSnapshots(devices=devices, groups=_added(parts, by), rows=pl.concat(rows) if with_rows else None,
                        problems=problems)


def _nothing(files: Mapping[int, Path], problems: Sequence[Unreadable]) -> DataError:
    if problems:
        return DataError(problems[0].detail)
    return DataError(f"no device memory in {next(iter(files.values()))}",
                     hint="start a history with torch.cuda.memory._record_memory_history()")


def _check(files: Mapping[int, Path], by: Sequence[str], ranks: Sequence[int]) -> None:
    for key in by:
        if key not in BY:
            near = difflib.get_close_matches(key, BY, n=1)
            raise UsageError(f"--by {key!r} is unknown for memory snapshots; choose from {', '.join(BY)}",
                             hint=f"--by {near[0]}" if near else None)
    for rank in ranks:
        if rank not in files:
            raise UsageError(f"rank {rank} has no snapshot; --rank can be {spans(sorted(files))}")


def _added(parts: Sequence[pl.DataFrame], by: Sequence[str]) -> pl.DataFrame:
    sums = [pl.col(name).max() if name == "largest_bytes" else pl.col(name).sum() for name in NUMBERS]
    return pl.concat(parts).group_by(list(by), maintain_order=True).agg(sums).sort(
        "peak_bytes", "allocated_bytes", descending=True, maintain_order=True)
