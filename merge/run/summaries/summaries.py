"""Reads the summaries of all ranks from the files of their hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import msgspec

from distprof.contract.problems import Unreadable
from distprof.contract.rank_json import RankJson
from distprof.contract.rank_summary import (
    DTYPES,
    MODULE_COLUMNS,
    OP_COLUMNS,
    STEP_COLUMNS,
    SUMMARIES,
    Arrivals,
    PackedTable,
    ParametersDigest,
    RankSummary,
)
from distprof.contract.tables import MODULES, OPS, STEPS, Column
from distprof.errors import FormatError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.merge.run.summaries.joined_columns import ColumnJoin, Joined, SharedValues, with_values
from distprof.summaries.host_file import Frame, arrivals_of, files_of, frames_in, head_of

MANY_RANKS = 64
"""In runs of more ranks, summaries are read first, and tables and traces only of the ranks that matter."""
UNUSED: Mapping[str, Collection[str]] = {
    STEPS.file: (), OPS.file: ("read_bytes", "write_bytes", "elements", "causal_macs", "kind"),
    MODULES.file: ("own_params", "trainable_params", "param_bytes", "buffers", "buffer_bytes", "evaluation_flops",
                   "dtype")}
"""Columns that no use of summaries needs, by table."""
JOINED: Mapping[str, tuple[Column, ...]] = {
    table.file: tuple(column for column in columns if column.name not in UNUSED[table.file])
    for table, columns in ((STEPS, STEP_COLUMNS), (MODULES, MODULE_COLUMNS), (OPS, OP_COLUMNS))}
"""Table -> columns that are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summaries:
    """What ranks recorded about themselves. Arrivals are read when they are requested."""

    frames: Mapping[int, Frame]
    """Rank -> where its summary is."""
    abouts: Mapping[int, RankJson]
    folders: Mapping[int, str]
    """Rank -> name of its folder."""
    tables: Mapping[str, Joined]
    """File name of a table -> its rows, for the tables in `JOINED`."""
    parameters: Mapping[int, ParametersDigest]
    exchanges: Mapping[int, PackedTable]
    problems: Sequence[Unreadable]

    def of(self, ranks: Collection[int]) -> Summaries:
        """Returns the summaries of some ranks."""
        return replace(self, frames={rank: frame for rank, frame in self.frames.items() if rank in ranks},
                       tables={file: table.of(ranks) for file, table in self.tables.items()})

    def arrivals(self, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, Arrivals]]:
        """Yields the ranks that have arrivals, with these, file by file, ordered by the first rank of each file."""
        wanted = [self.frames[rank] for rank in sorted(self.frames if ranks is None else ranks)]
        first = {frame.path: frame.rank for frame in reversed(wanted)}
        wanted.sort(key=lambda frame: (first[frame.path], str(frame.path), frame.rank))
        for path, frames in groupby(wanted, key=lambda frame: frame.path):
            content = _content(path)
            for frame in frames:
                try:
                    found = arrivals_of(frame, content)
                except (ValueError, msgspec.MsgspecError):
                    continue  # the file was damaged after it was opened
                if found is not None:
                    yield frame.rank, found


def read_summaries(paths: Sequence[Path], *, folders: Iterable[str] | None = None,
                   only: Collection[str] = tuple(JOINED)) -> Summaries | None:
    """Reads the summaries in run directories; None if there are none.

    Args:
        paths: Run directories of one job.
        folders: Names of the folders of ranks that exist; a summary whose folder is gone does not count. None: all
            count.
        only: Tables that are wanted; the others have no rows.
    """
    frames, problems = _frames([file for path in paths for file in files_of(path)])
    if not frames:
        return None
    known = None if folders is None else set(folders)
    stale = frozenset[int]()
    while True:
        gathering = _Gathering(only=only)
        for path, ranks in _by_file(frames):
            content = _content(path)
            for rank in ranks:
                if rank not in stale:
                    gathering.add(rank, frames[rank], content, known)
        newest = max((one.attempt for one in gathering.abouts.values()), default=0)
        old = frozenset(rank for rank, one in gathering.abouts.items() if one.attempt < newest)
        if not old:
            return gathering.done(problems)
        stale |= old


def _by_file(frames: Mapping[int, Sequence[Frame]]) -> list[tuple[Path, list[int]]]:
    """Returns each file with the ranks whose last summary is in it, sorted by first rank, to read each once."""
    found = defaultdict[Path, list[int]](list)
    for rank in sorted(frames):
        found[frames[rank][-1].path].append(rank)
    return list(found.items())


def _content(file: Path) -> bytes:
    try:
        return read_small(file, MOST_LINES_BYTES)
    except OSError:
        return b""


def _frames(files: Iterable[Path]) -> tuple[dict[int, list[Frame]], list[Unreadable]]:
    found, problems = defaultdict[int, list[Frame]](list), list[Unreadable]()
    for file in files:
        try:
            content = read_small(file, MOST_LINES_BYTES)
        except OSError as error:
            problems.append(Unreadable(file=f"{SUMMARIES}/{file.name}", detail=error.strerror or str(error)))
            continue
        frames, lost = frames_in(file, content)
        for frame in frames:
            found[frame.rank].append(frame)
        if lost or not content:
            detail = f"{lost} of its {len(content)} bytes belong to no summary" if content else "it is empty"
            problems.append(Unreadable(file=f"{SUMMARIES}/{file.name}", detail=detail))
    return found, problems


@dataclass
class _Gathering:
    """Joins columns while summaries are read one by one."""

    only: Collection[str]
    frames: dict[int, Frame] = field(default_factory=dict)
    abouts: dict[int, RankJson] = field(default_factory=dict)
    folders: dict[int, str] = field(default_factory=dict)
    parameters: dict[int, ParametersDigest] = field(default_factory=dict)
    exchanges: dict[int, PackedTable] = field(default_factory=dict)
    problems: list[Unreadable] = field(default_factory=list)
    tables: dict[str, ColumnJoin] = field(default_factory=lambda: {
        file: ColumnJoin({column.name: DTYPES[column.type] for column in columns},
                         [column.name for column in columns if column.type in ("string", "category")])
        for file, columns in JOINED.items()})

    shared: SharedValues = field(default_factory=SharedValues)

    def add(self, rank: int, frames: Sequence[Frame], content: bytes, known: set[str] | None) -> None:
        """Adds the last readable summary of a rank."""
        for frame in reversed(frames):
            try:
                found = head_of(frame, content if frame.path == frames[-1].path else _content(frame.path))
            except (ValueError, msgspec.MsgspecError, FormatError) as error:
                self.problems.append(Unreadable(rank=rank, file=f"{SUMMARIES}/{frame.path.name}",
                                                detail=str(error).splitlines()[0]))
                continue
            if found.about.rank != rank:
                self.problems.append(Unreadable(rank=rank, file=f"{SUMMARIES}/{frame.path.name}",
                                                detail=f"the summary belongs to rank {found.about.rank}"))
                continue
            if known is None or not found.folder or found.folder in known:
                self._take(rank, frame, found)
            return

    def _take(self, rank: int, frame: Frame, found: RankSummary) -> None:
        self.frames[rank], self.abouts[rank], self.folders[rank] = frame, self.shared.about(found.about), found.folder
        for file, table in ((STEPS.file, found.steps), (MODULES.file, found.modules), (OPS.file, found.ops)):
            if file not in self.only:
                continue
            self.tables[file].add(rank, table)
        if found.parameters is not None:
            self.parameters[rank] = self.shared.kept(found.parameters)
        self.exchanges[rank] = self.shared.kept(found.exchanges)
        self.problems += [Unreadable(rank=rank, file=file, detail="it could not be read when the summary was written")
                          for file in found.damaged]

    def done(self, problems: Sequence[Unreadable]) -> Summaries:
        return Summaries(
            frames=dict(sorted(self.frames.items())), abouts=self.abouts, folders=self.folders,
            parameters=self.parameters, exchanges=self.exchanges,
            problems=[*problems, *self.problems],
            tables={file: with_values(table.joined()) for file, table in self.tables.items()})
