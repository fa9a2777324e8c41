"""Describes a run and its ranks, whoever recorded them: where their files are and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distprof.contract.mesh import AXES
from distprof.contract.paths import RANK_JSON
from distprof.contract.problems import Problem, Remark
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import Table
from distprof.merge.scan.trace_file import TraceFile

if TYPE_CHECKING:
    from distprof.contract.rank_summary import Arrivals, ParametersDigest
    from distprof.merge.run.summaries.summaries import Summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank left: a folder of ours, or a trace of another program."""

    number: int
    """Its global rank."""
    folder: Path
    host: str = ""
    coordinates: Mapping[str, int] | None = None
    """Its coordinate on each axis of the device mesh; None if unknown."""
    device_name: str | None = None
    trace: TraceFile | None = None
    """Its Chrome trace; None if it has none."""
    beside: Sequence[TraceFile] = ()
    """Traces that other programs recorded of this rank at the same time."""
    execution_trace: TraceFile | None = None
    """Its execution trace; None if it has none."""
    recorded: RankJson | None = None
    """Contents of rank.json; None if only a trace of the rank, or only its rows in a merge, exist."""

    @property
    def place(self) -> str:
        """Coordinates of the rank in the device mesh, like `tp1 dp0`."""
        coordinates = self.coordinates or {}
        return " ".join(f"{axis}{coordinates[axis]}" for axis in reversed(AXES) if axis in coordinates)

    @property
    def has_folder(self) -> bool:
        """True if its own files exist; in runs of many ranks there may be only the files of their hosts."""
        return (self.folder / RANK_JSON).is_file()

    def has(self, table: Table) -> bool:
        """Returns whether the rank wrote this table."""
        return self.recorded is not None and (self.folder / table.file).is_file()

    def with_timeline(self, file: str) -> Rank:
        """Returns the same rank with the timeline of this name in its folder; without one if the file is missing."""
        path = self.folder / file
        return replace(self, trace=TraceFile(path=path) if path.is_file() else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaired:
    """Files of other programs whose names do not show their rank; their contents may."""

    execution_traces: Sequence[TraceFile] = ()
    timelines: Sequence[TraceFile] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory, or traces of another program, as found when it was opened; it never changes."""

    path: Path
    run_id: str
    world_size: int
    mp_size: int
    dp_size: int
    topology: Mapping[str, int]
    topology_source: str
    ranks: Sequence[Rank]
    """All ranks found, sorted by number."""
    missing: Sequence[int]
    problems: Sequence[Problem] = ()
    """What is incomplete."""
    remarks: Sequence[Remark] = ()
    """What to keep in mind although nothing is missing."""
    more: Sequence[Path] = ()
    """Further run directories of the same job, written by other hosts."""
    kind: Literal["distprof", "traces"] = "distprof"
    """`traces`: no module profiler ran, so there are no tables."""
    topology_certain: bool = True
    """False if the sizes, and therefore totals of the model, may be wrong."""
    topology_known: bool = True
    """False if the topology is unknown, and mp_size 1 and dp_size = world size are placeholders."""

    unpaired: Unpaired = Unpaired()
    """Files that lie beside traces of other programs."""
    summaries: Summaries | None = None
    """Summaries that most ranks wrote, if there are many ranks, whose folders were not opened; else None."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All paths that were read."""
        return (self.path, *self.more)

    @property
    def by_host(self) -> bool:
        """True if the run has many ranks, whose calls and tables are read from the files of their hosts."""
        return self.summaries is not None

    def arrivals(self) -> Iterator[tuple[int, Arrivals]]:
        """Yields the ranks in the files of hosts that made calls, with these calls."""
        return iter(()) if self.summaries is None else self.summaries.arrivals()

    @property
    def digests(self) -> Mapping[int, ParametersDigest]:
        """Rank -> digest of its parameters, for ranks in the files of hosts."""
        return {} if self.summaries is None else self.summaries.parameters

    @property
    def in_folders_alone(self) -> list[Rank]:
        """If the run was opened by the files of hosts, ranks that are not in these files; otherwise empty."""
        known = self.summaries.frames if self.summaries is not None else {}
        return [rank for rank in self.ranks if rank.number not in known] if known else []

    def of_tables(self, ranks: Collection[int] | None = None) -> Run:
        """Returns the same run with only these ranks, or all, reading their own tables and traces."""
        return replace(self, summaries=None, ranks=[rank for rank in self.ranks
                                                    if ranks is None or rank.number in ranks])

    def of_ranks(self, ranks: Collection[int]) -> Run:
        """Returns the same run with only these ranks, wherever they are read from."""
        return replace(self, summaries=None if self.summaries is None else self.summaries.of(ranks),
                       ranks=[rank for rank in self.ranks if rank.number in ranks])

    @property
    def light_ranks(self) -> frozenset[int]:
        """Ranks recorded without timeline and counts, because other ranks were chosen for these."""
        return frozenset(rank.number for rank in self.ranks if rank.recorded is not None and rank.recorded.light)

    def noting(self, problems: Iterable[Problem] = (), remarks: Iterable[Remark] = ()) -> Run:
        """Returns the same run with additional problems and remarks."""
        return replace(self, problems=(*self.problems, *problems), remarks=(*self.remarks, *remarks))
