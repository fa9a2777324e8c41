"""A run as it was found: a path comes in, the ranks that are there and what is wrong with them go out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distprof.contract import rank_json
from distprof.contract.columns import Table
from distprof.contract.mesh import AXES, SIZE_FLAGS
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, RUN_JSON, STEP_LINES, TRACE_JSON
from distprof.contract.problems import (
    AttemptsDiffer,
    FilesMissing,
    FolderUnreadable,
    Other,
    Problem,
    RankFailed,
    RanksMissing,
    Remark,
    Unfinished,
)
from distprof.contract.rank_json import ClockPair, RankJson, RunJson
from distprof.errors import DataError, FormatError
from distprof.merge.clock.by_samples import SampledRank, clock_by_samples
from distprof.merge.clock.model import Alignment, Clock
from distprof.merge.scan.streams import TraceFile

if TYPE_CHECKING:
    from distprof.merge.run.ranking import Naming

FOLDER = re.compile(rf"rank(\d+)({re.escape(PARTIAL_SUFFIX)})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank left: a folder of ours, or a trace of another program."""

    folder: Path
    info: RankJson
    trace: TraceFile | None = None
    """Where its Chrome trace lies; None where it has none."""
    plain: bool = False
    """True where the trace is all there is: no tables, and an `info` that says what the trace says."""

    @property
    def number(self) -> int:
        """The global rank."""
        return self.info.rank

    @property
    def place(self) -> str:
        """Where the rank stands in the device mesh, like `tp1 dp0`."""
        coordinates = self.info.coordinates or {}
        return " ".join(f"{axis}{coordinates[axis]}" for axis in reversed(AXES) if axis in coordinates)

    def has(self, table: Table) -> bool:
        """True where the rank wrote this table."""
        return not self.plain and (self.folder / table.file).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory, or traces of another program: ranks by number, and what is not complete."""

    path: Path
    run_id: str
    world_size: int
    mp_size: int
    dp_size: int
    topology: dict[str, int]
    topology_source: str
    ranks: list[Rank]
    missing: list[int]
    problems: list[Problem]
    """What reading finds damaged later, in a trace or a table, is added."""
    clock: Clock
    """What brings the ranks to one clock."""
    kind: Literal["distprof", "traces"] = "distprof"
    """`traces`: no module profiler ran, there are no tables."""
    remarks: list[Remark] = field(default_factory=list)
    """What to keep in mind; nothing that is incomplete."""
    topology_known: bool = True
    """False where mp_size 1 and dp_size = world size stand for what nobody told."""


def open_run(path: Path, *more: Path, naming: Naming | None = None) -> Run:
    """Opens a run directory, or finds the traces of other programs that lie at the given paths.

    Args:
        path: A run directory, a folder of traces, a trace or an archive of traces.
        *more: Further traces, archives or folders of traces.
        naming: How to tell the rank of a trace, where neither the trace nor its name does.

    Raises:
        DataError: Nothing can be read, or its parts contradict each other.
        FormatError: It was written by a newer distprof.
        UsageError: `naming` makes no sense.
    """
    from distprof.merge.run.discovery import is_recorded
    from distprof.merge.run.open_traces import open_traces  # it makes what is defined here

    return _recorded(path) if not more and is_recorded(path) else open_traces((path, *more), naming)


def _recorded(path: Path) -> Run:
    """Reads run.json and every rank.json."""
    problems: list[Problem] = []
    info = _run_info(path, problems)
    ranks, left_out = _ranks(path)
    if not ranks:
        raise DataError(f"expected rank folders like rank00000 in {path}, found none that can be read"
                        + "".join(f"; {one.folder}: {one.detail}" for one in left_out),
                        hint="only directories written by distprof run or distprof.record can be read")
    problems += left_out
    _check_same_run(ranks, info)
    world_size = _world_size(ranks, info)
    missing = sorted(set(range(world_size)) - {rank.number for rank in ranks})
    if missing:
        problems.append(RanksMissing(ranks=tuple(missing), world_size=world_size))
    problems += [problem for rank in ranks for problem in _problems_of(rank)]
    attempts = {rank.info.attempt for rank in ranks}
    if len(attempts) > 1:
        problems.append(AttemptsDiffer(attempts=tuple(sorted(attempts))))
    mp_size, dp_size = _sizes(ranks, world_size)
    known = next((rank.info for rank in ranks if rank.info.topology is not None), None)
    return Run(path=path, run_id=ranks[0].info.run_id, world_size=world_size, mp_size=mp_size, dp_size=dp_size,
               topology=(known.topology if known else None) or {"dp": world_size},
               topology_source=(known.topology_source if known else None) or "unknown",
               ranks=ranks, missing=missing, problems=problems, clock=clock_of_ranks(ranks))


def _run_info(path: Path, problems: list[Problem]) -> RunJson | None:
    try:
        return rank_json.read(path / RUN_JSON, RunJson) if (path / RUN_JSON).exists() else None
    except FormatError:
        raise
    except DataError as error:
        problems.append(Other(detail=str(error.args[0])))
        return None


def _ranks(path: Path) -> tuple[list[Rank], list[FolderUnreadable]]:
    """Every rank that can be read; a folder that cannot is a problem, not the end."""
    found: dict[int, Rank] = {}
    left_out: list[FolderUnreadable] = []
    for folder in sorted(child for child in path.iterdir() if FOLDER.fullmatch(child.name) and child.is_dir()):
        if not (folder / RANK_JSON).exists():
            detail = f"it has no {RANK_JSON}" if any(folder.iterdir()) else "it is empty"
            left_out.append(FolderUnreadable(folder=folder.name, detail=detail))
            continue
        try:
            info = rank_json.read(folder / RANK_JSON, RankJson)
        except FormatError:
            raise
        except DataError as error:
            left_out.append(FolderUnreadable(folder=folder.name, detail=str(error.args[0])))
            continue
        trace = folder / TRACE_JSON
        rank = Rank(folder=folder, info=info, trace=TraceFile(path=trace) if trace.is_file() else None)
        other = found.setdefault(rank.number, rank)
        if other is not rank:
            raise DataError(f"expected one folder of rank {rank.number}, found {other.folder.name} and {folder.name}",
                            hint="remove the one that does not belong to this run")
    return [found[number] for number in sorted(found)], left_out


def _check_same_run(ranks: list[Rank], info: RunJson | None) -> None:
    ids = Counter(rank.info.run_id for rank in ranks)
    expected = info.run_id if info is not None else ids.most_common(1)[0][0]
    for rank in ranks:
        if rank.info.run_id != expected:
            raise DataError(f"expected ranks of run {expected}, found run {rank.info.run_id} in {rank.folder.name}",
                            hint=f"remove {rank.folder} or put the right folder there")


def _world_size(ranks: list[Rank], info: RunJson | None) -> int:
    sizes = {rank.info.world_size for rank in ranks}
    if len(sizes) > 1:
        raise DataError(f"expected one world size in all ranks, found {sorted(sizes)}",
                        hint="the folders are of different jobs")
    size = sizes.pop()
    outside = [rank.number for rank in ranks if rank.number >= size]
    if outside:
        raise DataError(f"expected ranks below the world size {size}, found rank {outside[0]}")
    # a rank that ran alone in a job of several never met the others
    return max(size, info.world_size or 0) if info is not None else size


def _sizes(ranks: list[Rank], world_size: int) -> tuple[int, int]:
    found = {(rank.info.mp_size, rank.info.dp_size) for rank in ranks if rank.info.mp_size is not None}
    if len(found) > 1:
        raise DataError(f"expected one (mp_size, dp_size) in all ranks, found {sorted(map(str, found))}",
                        hint=f"give the sizes to distprof run: {SIZE_FLAGS}")
    mp_size, dp_size = found.pop() if found else (1, world_size)
    if not mp_size or not dp_size or mp_size * dp_size != world_size:
        raise DataError(f"expected mp_size x dp_size = world size {world_size}, found mp_size {mp_size} and dp_size "
                        f"{dp_size}", hint=f"mp_size must divide the world size: check {SIZE_FLAGS}")
    return mp_size, dp_size


def _problems_of(rank: Rank) -> list[Problem]:
    found: list[Problem] = []
    if rank.info.status == "recording":
        found.append(Unfinished(rank=rank.number, steps=_steps_written(rank)))
    elif rank.info.status != "complete":
        found.append(RankFailed(rank=rank.number, status=rank.info.status, why=rank.info.why))
    lost = [name for name in rank.info.files if not (rank.folder / name).is_file()]
    if lost:
        found.append(FilesMissing(rank=rank.number, files=tuple(lost)))
    return found


def _steps_written(rank: Rank) -> int:
    lines = rank.folder / STEP_LINES
    return len(lines.read_bytes().splitlines()) if lines.exists() else rank.info.num_steps or 0


def clock_of_ranks(ranks: Sequence[Rank]) -> Clock:
    """What the ranks themselves know of their clocks."""
    if len(ranks) == 1:
        return Clock(method="shared", num_hosts=1, ranks={
            ranks[0].number: Alignment(uncertainty_ns=0, drift_uncertainty_ppm=0.0)})
    return clock_by_samples([sampled(rank) for rank in ranks])


def sampled(rank: Rank) -> SampledRank:
    """What a rank knows of its clock. A trace of another program tells its host by name only."""
    info = rank.info
    is_name = bool(info.host) and not info.host.startswith("localhost")
    host = (info.host, info.boot_id) if info.boot_id or (rank.plain and is_name) else None
    return SampledRank(rank=rank.number, host=host, samples=info.clock_sync, set_by_ns=_clock_stepped_by(info.clock))


def clock_of(run: Run) -> dict[str, Any]:
    """How the timestamps of the ranks were brought to one clock, for `summary.json`."""
    return {**run.clock.to_json(),
            "set_by_ns": max((_clock_set_by(rank.info.clock) for rank in run.ranks), default=0)}


def _clock_set_by(samples: list[ClockPair]) -> int:
    """How far the wall clock was moved against the one that is never set, in ns."""
    gaps = [sample.realtime_ns - sample.monotonic_ns for sample in samples]
    return max(gaps) - min(gaps) if gaps else 0


def _clock_stepped_by(samples: list[ClockPair]) -> int:
    """The same without what runs on steadily, as a drift does: that the samples of clocks see themselves.

    Beside the line from the first reading to the last, a step shows but for the share of the time in which it fell.
    """
    most = _clock_set_by(samples)
    if len(samples) < 3:
        return most
    times = np.array([sample.monotonic_ns for sample in samples], np.int64)
    gaps = np.array([sample.realtime_ns for sample in samples], np.int64) - times
    since, gaps = times - times[0], gaps - gaps[0]
    share = float(np.diff(since).max() / since[-1]) if since[-1] > 0 else 1.0
    return min(most, round(float(np.ptp(gaps - gaps[-1] * (since / since[-1]))) / (1 - share))) if share < 1 else most
