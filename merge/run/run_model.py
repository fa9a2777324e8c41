"""A run and its ranks, whoever recorded them: where their files are and what is missing."""

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
    """The global rank."""
    folder: Path
    host: str = ""
    coordinates: Mapping[str, int] | None = None
    """Its place on each axis of the device mesh; None where that is not known."""
    device_name: str | None = None
    trace: TraceFile | None = None
    """Its Chrome trace; None where it has none."""
    beside: Sequence[TraceFile] = ()
    """Traces that other programs made of it at the same time."""
    execution_trace: TraceFile | None = None
    """Its execution trace; None where it has none."""
    recorded: RankJson | None = None
    """rank.json; None for a rank of which only a trace, or only its rows in a merge, are there."""

    @property
    def place(self) -> str:
        """Where the rank stands in the device mesh, like `tp1 dp0`."""
        coordinates = self.coordinates or {}
        return " ".join(f"{axis}{coordinates[axis]}" for axis in reversed(AXES) if axis in coordinates)

    @property
    def has_folder(self) -> bool:
        """True where its own files are there: of many ranks only the files of their hosts may be."""
        return (self.folder / RANK_JSON).is_file()

    def has(self, table: Table) -> bool:
        """True where the rank wrote this table."""
        return self.recorded is not None and (self.folder / table.file).is_file()

    def with_timeline(self, file: str) -> Rank:
        """The same rank with the timeline of this name in its folder; with none where it is not there."""
        path = self.folder / file
        return replace(self, trace=TraceFile(path=path) if path.is_file() else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaired:
    """Files of other programs that no name gives to a rank: what is in them may tell."""

    execution_traces: Sequence[TraceFile] = ()
    timelines: Sequence[TraceFile] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory, or traces of another program, as opening found it; it never changes."""

    path: Path
    run_id: str
    world_size: int
    mp_size: int
    dp_size: int
    topology: Mapping[str, int]
    topology_source: str
    ranks: Sequence[Rank]
    """By number."""
    missing: Sequence[int]
    problems: Sequence[Problem] = ()
    """What is incomplete."""
    remarks: Sequence[Remark] = ()
    """What to keep in mind although nothing is missing."""
    more: Sequence[Path] = ()
    """Further run directories of the same job, that other hosts wrote."""
    kind: Literal["distprof", "traces"] = "distprof"
    """`traces`: no module profiler ran, there are no tables."""
    topology_certain: bool = True
    """False where the sizes may be others, and totals of the model with them."""
    topology_known: bool = True
    """False where mp_size 1 and dp_size = world size stand for an unknown topology."""

    unpaired: Unpaired = Unpaired()
    """What lies beside traces of other programs."""
    summaries: Summaries | None = None
    """Of a run of many ranks, what most of them say of themselves: their folders were not looked at."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All that was read."""
        return (self.path, *self.more)

    @property
    def by_host(self) -> bool:
        """True for one of many ranks whose calls and tables are joined in the files of its hosts."""
        return self.summaries is not None

    def arrivals(self) -> Iterator[tuple[int, Arrivals]]:
        """Ranks in the files of hosts that made calls, and these."""
        return iter(()) if self.summaries is None else self.summaries.arrivals()

    @property
    def digests(self) -> Mapping[int, ParametersDigest]:
        """Rank -> what it holds, of those that are in the files of hosts."""
        return {} if self.summaries is None else self.summaries.parameters

    @property
    def in_folders_alone(self) -> list[Rank]:
        """Ranks whose own tables are all there is of them; none where every rank is read so."""
        known = self.summaries.frames if self.summaries is not None else {}
        return [rank for rank in self.ranks if rank.number not in known] if known else []

    def of_tables(self, ranks: Collection[int] | None = None) -> Run:
        """The same run with these ranks alone, or all, whose tables and traces are read."""
        return replace(self, summaries=None, ranks=[rank for rank in self.ranks
                                                    if ranks is None or rank.number in ranks])

    def of_ranks(self, ranks: Collection[int]) -> Run:
        """The same run with these ranks alone, from wherever they are read."""
        return replace(self, summaries=None if self.summaries is None else self.summaries.of(ranks),
                       ranks=[rank for rank in self.ranks if rank.number in ranks])

    @property
    def light_ranks(self) -> frozenset[int]:
        """Those that were recorded without timeline and counts, because others were chosen for these."""
        return frozenset(rank.number for rank in self.ranks if rank.recorded is not None and rank.recorded.light)

    def noting(self, problems: Iterable[Problem] = (), remarks: Iterable[Remark] = ()) -> Run:
        """The same run with what was found later as well."""
        return replace(self, problems=(*self.problems, *problems), remarks=(*self.remarks, *remarks))
