"""The snapshots of all ranks among the given paths, read one by one; only what is shown is kept."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import polars as pl

from distprof.contract.paths import MERGED
from distprof.contract.problems import Unreadable
from distprof.errors import DataError, UsageError
from distprof.merge.run.traces.discovery import LEVELS, first_few, is_recorded, trace_times
from distprof.merge.run.traces.rank_from_name import natural, rank_in
from distprof.merge.snapshot.allocations import SUMS
from distprof.merge.snapshot.device_memory import DeviceMemory, device_memory
from distprof.merge.snapshot.snapshot_file import read_snapshot
from distprof.units import spans

BY = ("line", "stack", "stream", "rank", "device")
"""Values of `--by`."""
TENSORS = 50
"""Number of the largest tensors at a peak that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDevice:
    """A device of a rank."""

    memory: DeviceMemory
    num_alive: int
    """Number of allocations at the peak."""
    largest: pl.DataFrame
    """The largest of these, as `allocations.SCHEMA`."""
    settings: str | None
    num_other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshots:
    """Results of all snapshots."""

    devices: Sequence[OneDevice]
    groups: pl.DataFrame
    """Columns of `by` and `SUMS`, largest at the peak first."""
    rows: pl.DataFrame | None
    """All allocations; None unless requested."""
    problems: Sequence[Unreadable]


def run_snapshots(files: Mapping[int, Path], *, by: Sequence[str], ranks: Sequence[int] = (), top: int = TENSORS,
                  with_rows: bool = False) -> RunSnapshots:
    """Reads the snapshots one by one.

    Args:
        files: Rank -> its snapshot.
        by: Columns to group by, from `BY`.
        ranks: Only these ranks; all if empty.
        top: Number of largest tensors to keep per device.
        with_rows: Whether to keep every allocation.

    Raises:
        DataError: No snapshot can be read.
        UsageError: There is no such rank or column.
    """
    _check(files, by, ranks)
    devices, parts, rows, problems = list[OneDevice](), list[pl.DataFrame](), list[pl.DataFrame](), list[Unreadable]()
    for rank in dict.fromkeys(ranks) or files:
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
    sums = [pl.col(name).max() if name == "largest_bytes" else pl.col(name).sum() for name in SUMS]
    return pl.concat(parts).group_by(list(by), maintain_order=True).agg(sums).sort(
        "peak_bytes", "allocated_bytes", descending=True, maintain_order=True)


SUFFIXES = (".pickle", ".pkl")
PICKLE = b"\x80"
"""First byte of every pickle since protocol 2."""


def find_snapshots(paths: Sequence[Path]) -> list[Path]:
    """Returns the snapshots at the given paths; none if these are runs or traces.

    Raises:
        DataError: Only some of the paths are snapshots.
    """
    found = {path: _at(path) for path in paths}
    without = [path for path, files in found.items() if not files]
    if len(without) == len(found):
        return []
    if without:
        raise DataError(f"memory snapshots cannot be combined with other files: {without[0]}",
                        hint="call distprof memory for each")
    return list(dict.fromkeys(file for files in found.values() for file in files))


def _at(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.name.endswith(SUFFIXES) or _begins_like_a_pickle(path) else []
    if not path.is_dir() or is_recorded(path) or next(trace_times(path), None) is not None:
        return []
    levels = ("*", "*/*", "*/*/*")[:LEVELS + 1]
    files = [file for level in levels for file in path.glob(level)
             if file.name.endswith(SUFFIXES) and file.is_file() and MERGED not in file.parts]
    return sorted(files, key=lambda file: natural(str(file)))


def _begins_like_a_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(1) == PICKLE
    except OSError:  # reported when it is read as a trace
        return False


def ranks_of(files: Sequence[Path]) -> tuple[Mapping[int, Path], bool]:
    """Assigns files to ranks by their names, or in their order; returns whether the ranks are known.

    Raises:
        DataError: A rank has several files.
    """
    names = [rank_in(PurePosixPath(*file.parts[-1 - LEVELS:])) for file in files]
    if None in names:
        return dict(enumerate(files)), len(files) == 1
    of_rank: dict[int, list[str]] = defaultdict(list)
    for rank, file in zip(names, files, strict=True):
        of_rank[rank or 0].append(str(file))
    twice = next((rank for rank, several in of_rank.items() if len(several) > 1), None)
    if twice is not None:
        raise DataError(f"more than one snapshot per rank: {len(of_rank[twice])} of rank {twice}: "
                        f"{first_few(of_rank[twice])}", hint="pass only the files of one moment")
    return {rank or 0: file for rank, file in sorted(zip(names, files, strict=True), key=lambda one: one[0] or 0)}, True
