"""Helpers of all sections of a report: the ranks that they show, tables as columns, and why a section may be absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from distprof.merge.report.sources import Sources
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.run.representatives import of_places
from distprof.units import counted, spans

Columns = dict[str, list[Any]]
MOST_RANKS = 64
"""In runs of at most this many ranks, each one is shown."""
IN_DETAIL = 8
"""Number of ranks whose modules and memory are shown individually."""


class AbsentError(Exception):
    """The run lacks what a section shows; the message is a sentence that says what."""

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        """Keeps the message, and which flags of `distprof run` would record what is missing."""
        super().__init__(what)
        self._remedy = remedy

    def sentence(self, *, recorded: bool) -> str:
        """Returns the message, with the remedy for a run of ours: flags do not help with traces of other programs."""
        return f"{self}: {self._remedy}" if recorded and self._remedy is not None else str(self)


def columns_of(frame: pl.DataFrame) -> Columns:
    """Returns the columns of a frame."""
    return frame.to_dict(as_series=False)


def columns_of_rows(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Columns:
    """Returns the columns of rows that have these keys."""
    found = list(rows)
    return {name: [row[name] for row in found] for name in names}


def numbered(values: pl.Series) -> tuple[list[Any], list[int | None]]:
    """Returns the distinct values in order of appearance, and the index of each value among them; None stays None."""
    known = values.drop_nulls().unique(maintain_order=True)
    places = {value: place for place, value in enumerate(known.to_list())}
    return list(places), [None if value is None else places[value] for value in values.to_list()]


def rows_of(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns columns as rows."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


@dataclass
class Sample:
    """The ranks that are shown, and sentences about what is not."""

    sources: Sources
    left_out: list[str] = field(default_factory=list)
    """Sentences about what the report groups or samples, with numbers."""

    @cached_property
    def ranks(self) -> list[int]:
        """All ranks, or those that matter most."""
        every = [rank.number for rank in self.sources.opened.ranks]
        if len(every) <= MOST_RANKS:
            return every
        shown = sorted(self._first(MOST_RANKS, every))
        self.left_out.append(
            f"{len(shown)} of {len(every)} ranks are shown individually ({spans(shown)}): those that delay the job, "
            "the slowest, fastest and median ranks, one per process group, and an even selection of the others; means "
            "are over all ranks")
        return shown

    @cached_property
    def in_detail(self) -> list[int]:
        """At most `IN_DETAIL` ranks that matter most."""
        every = [rank.number for rank in self.sources.opened.ranks]
        shown = sorted(self._first(IN_DETAIL, every))
        if len(shown) < len(every):
            self.left_out.append(f"modules and memory are shown for {counted(len(shown), 'rank')} individually "
                                 f"({spans(shown)}), and for the mean of all {len(every)}")
        return shown

    def _first(self, number: int, every: Sequence[int]) -> set[int]:
        """Returns this many ranks, those that matter most first."""
        found = dict.fromkeys((*self._culprits(), *self._extremes(), every[0]))
        groups = dict.fromkeys(self._of_groups())
        found |= dict.fromkeys(_evenly(list(groups), number - len(found)))
        found |= dict.fromkeys(_evenly([rank for rank in every if rank not in found], number - len(found)))
        return set(list(found)[:number])

    def _culprits(self) -> Iterable[int]:
        analysis = self.sources.comms.analysis
        return () if analysis is None else (rank for one in analysis.culprits if one.certain for rank in one.ranks)

    def _extremes(self) -> Iterable[int]:
        """Returns the slowest, the fastest and the median rank."""
        by_time = self._durations().sort("duration_ns", "rank")["rank"].to_list()
        return (by_time[-1], by_time[0], by_time[len(by_time) // 2]) if by_time else ()

    def _durations(self) -> pl.DataFrame:
        windows = self.sources.tables.steps if self.sources.is_recorded else self.sources.program[0].windows
        return windows.select("rank", "pass", "duration_ns").filter(pl.col("pass") != "wait").group_by("rank").agg(
            pl.col("duration_ns").mean())

    def _of_groups(self) -> Iterable[int]:
        """Returns one rank of each process group, or of each place in the model."""
        rows = self.sources.comms.rows
        if rows.is_empty():
            return (rank.number for rank in of_places(self.sources.opened))
        lists = with_lists(rows.select("group_ranks").unique())["group_ranks"].drop_nulls().to_list()
        return (min(ranks) for ranks in sorted(lists, key=len, reverse=True) if ranks)


def _evenly(values: Sequence[int], number: int) -> Sequence[int]:
    """Returns at most `number` of the values, evenly spaced."""
    if len(values) <= number:
        return values
    return [values[index * len(values) // number] for index in range(max(number, 0))]
