"""Lists the formats of `distprof merge --format`, and defines what a format consists of.

An `Output` for the run returns a `RankWriter` for each rank. The content of the merged trace is decided before, once
for all formats: the `RankPlan` of each rank, and `RankEvents` for its events. A format, in its own module, writes that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from distprof.contract.merged import MERGED_EVENTS
from distprof.contract.paths import TRACE_JSON, TRACE_PERFETTO, TRACE_TAR, TRACE_ZSTD

if TYPE_CHECKING:
    from distprof.merge.chrome.rank_events import DecidedEvents, RankCounts, RankEvents
    from distprof.merge.chrome.rank_plan import Plans, RankPlan
    from distprof.merge.clock.model import Clock
    from distprof.merge.run.run_model import Run
    from distprof.storage.writing.by_workers import ByWorkers


class RankWriter(Protocol):
    """Writes the events of one rank in a worker. It is sent there before `begin`, and can be pickled until then."""

    @property
    def integers(self) -> Sequence[str]:
        """Keys of `args` whose integers it needs as columns of the scanner."""

    @property
    def texts(self) -> Sequence[str]:
        """Keys of `args` whose texts it needs as columns of the scanner."""

    def begin(self, events: RankEvents) -> None:
        """Opens its files, empty: an earlier pass may have been invalidated by damage."""

    def add(self, events: DecidedEvents) -> None:
        """Writes the next events."""

    def end(self) -> None:
        """Writes what follows the last events, such as what the merge adds."""

    def close(self) -> None:
        """Closes its files, even if the pass failed."""


class Output(Protocol):
    """Writes the merged trace in one format. Ranks are written concurrently, then added in their order."""

    def begin(self) -> None:
        """Opens its files."""

    def rank_writer(self, plan: RankPlan) -> RankWriter | None:
        """Returns the writer for a rank; None if the format takes the rank's file unchanged."""

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        """Adds a written rank, in ascending order; counts are 0 if the file is taken unchanged."""

    def end(self, counts: Sequence[RankCounts]) -> None:
        """Writes what follows the ranks, and closes its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way to write the merged trace."""

    what: str
    """Description in the help of `--format`."""
    files: tuple[str, ...]
    """Files and folders that it writes; the first is the one that a user opens."""
    outputs: Callable[[ByWorkers | None], Sequence[Callable[[Path, Run, Clock, Plans], Output]]]
    """Imports and returns their classes; importing takes a while. Each is constructed from the target folder, the run,
    its clock, and the plans of its ranks. The argument is what workers write elsewhere themselves."""
    chooses_events: bool = True
    """False if files are taken unchanged, so that events cannot be left out."""
    by_workers: bool = False
    """Whether workers can write its files elsewhere themselves."""


def _chrome(by_workers: ByWorkers | None) -> Sequence[Callable[[Path, Run, Clock, Plans], Output]]:
    from distprof.merge.chrome.chrome_json import ChromeJson
    from distprof.merge.chrome.events_table import EventTables

    if by_workers is None:
        return ChromeJson, EventTables
    return partial(ChromeJson, joined=by_workers.joined), partial(EventTables, objects=by_workers.objects)


def _chrome_zstd(_: ByWorkers | None) -> Sequence[Callable[[Path, Run, Clock, Plans], Output]]:
    from distprof.merge.chrome.chrome_json import ChromeJson
    from distprof.merge.chrome.chrome_rank import ZstdFrame
    from distprof.merge.chrome.events_table import EventTables

    return partial(ChromeJson, file=TRACE_ZSTD, packer=ZstdFrame), EventTables


def _perfetto(_: ByWorkers | None) -> Sequence[Callable[[Path, Run, Clock, Plans], Output]]:
    from distprof.merge.chrome.events_table import EventTables
    from distprof.merge.chrome.perfetto_trace import PerfettoTrace

    return PerfettoTrace, EventTables


def _perfetto_tar(_: ByWorkers | None) -> Sequence[Callable[[Path, Run, Clock, Plans], Output]]:
    from distprof.merge.chrome.perfetto_tar import PerfettoTar

    return (PerfettoTar,)


FORMATS = {
    "chrome": Format(what="one Chrome trace", files=(TRACE_JSON, MERGED_EVENTS.file), outputs=_chrome,
                     by_workers=True),
    "chrome-zstd": Format(what="the same, compressed by zstd, which is smaller and which Perfetto does not read",
                          files=(TRACE_ZSTD, MERGED_EVENTS.file), outputs=_chrome_zstd),
    "perfetto": Format(what="one binary trace (Fuchsia's format), which Perfetto loads in half the time",
                       files=(TRACE_PERFETTO, MERGED_EVENTS.file), outputs=_perfetto),
    "perfetto-tar": Format(what="an archive of the ranks' own files for Perfetto 58", files=(TRACE_TAR,),
                           outputs=_perfetto_tar, chooses_events=False),
}
