"""Matches the communication of a run: finds which rows of different ranks are one collective. No clock is needed.

Runs of many ranks are matched part by part: all rows are on disk, those of one part in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.contract.collective_ops import POINT_TO_POINT, text_of
from distprof.contract.problems import Problem, Remark
from distprof.merge.match.foreign_rows import foreign_rows, remarks_of
from distprof.merge.match.groups import keys_of
from distprof.merge.match.matching import Placed, calls_of, match, with_corrected
from distprof.merge.match.partition import NumberEvidence, Numbering, Partition
from distprof.merge.match.rank_rows import RankRows, recorded_rows
from distprof.merge.run.joined_calls import JoinedCalls, Meeting
from distprof.merge.run.run_model import Run
from distprof.merge.spill import Parts

ISSUED = "issued"
"""Column besides those of the contract: the position of a row in the table of its rank."""
COMPARED = ("group", "group_ranks", "rank", "op", "dtype", "size_bytes", "comms_id", "group_sequence", "corrected",
            "sequence", "step")
"""Columns that matching compares."""

MEETING: dict[str, Any] = {"group": pl.String, "group_ranks": pl.String, "sender": pl.Int64, "receiver": pl.Int64}
"""Columns that identify a `Meeting` of a run of many ranks, with their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRun:
    """The matched rows of all ranks."""

    rows: pl.DataFrame
    """As returned by `match`: the numbers of collectives mean nothing yet, times are on each rank's own clock."""
    problems: Sequence[Problem]
    """Tables that cannot be read."""
    remarks: Sequence[Remark]
    """What was inferred for the matches."""


def match_run(run: Run) -> MatchedRun:
    """Reads the communication of every rank, once, and matches it."""
    found = rows_of_ranks(run)
    rows = match(found.rows, ended=found.ended, world_size=run.world_size)
    return MatchedRun(rows=rows, problems=found.problems, remarks=remarks_of(rows) if run.kind == "traces" else [])


def rows_of_ranks(run: Run) -> RankRows:
    """Returns the communication of every rank, whoever recorded it."""
    return foreign_rows(run) if run.kind == "traces" else recorded_rows(run)


def unlike_meetings(joined: JoinedCalls) -> Array:
    """Returns indices of meetings in which, in some step, ranks made different calls or some ranks are missing."""
    if not len(joined.cell_step):
        return np.empty(0, np.int64)
    sizes = np.array([one.num_ranks for one in joined.meetings], np.int64)
    key = joined.cell_step.astype(np.int64) * len(sizes) + joined.cell_meeting
    cells = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[cells], prepend=-1))
    meeting = joined.cell_meeting[cells[first]]
    fingerprint, calls = (values[joined.cell_sequence[cells]] for values in (
        joined.sequence_fingerprint, joined.sequence_calls))
    count = np.diff(np.append(first, len(cells)))
    return np.unique(meeting[~(_equal(fingerprint, first) & _equal(calls, first) & (count == sizes[meeting]))])


def match_meetings(run: Run, ranks: Collection[int], meetings: Sequence[Meeting],
                   whole: Collection[int]) -> pl.DataFrame:
    """Matches the calls of some meetings row by row.

    Args:
        run: A run opened by the files of its hosts.
        ranks: Ranks that take part.
        meetings: The meetings whose calls are matched.
        whole: Ranks all of whose calls are matched.
    """
    found = recorded_rows(run.of_ranks(ranks))
    op = pl.col("op").cast(pl.String)
    is_pair = op.is_in(POINT_TO_POINT)
    mine = found.rows.select(
        "rank", pl.col("group", "group_ranks").cast(pl.String),
        sender=pl.when(is_pair).then(pl.when(op == "send").then("rank").otherwise("peer")),
        receiver=pl.when(is_pair).then(pl.when(op == "send").then("peer").otherwise("rank")))
    keys = pl.DataFrame([(one.group.name, text_of(one.group.ranks), one.sender, one.receiver) for one in meetings],
                        schema=MEETING, orient="row")
    held = mine.join(keys.unique().with_columns(held=pl.lit(True)), on=list(MEETING), how="left", nulls_equal=True,
                     maintain_order="left")
    rows = found.rows.filter(held["held"].fill_null(False) | held["rank"].is_in(list(whole)))
    return match(rows, ended=found.ended, world_size=run.world_size)


def _equal(values: Integers, first: Integers) -> Any:
    """Returns for each run of values, beginning at `first`, whether all of them are equal."""
    return np.minimum.reduceat(values, first) == np.maximum.reduceat(values, first)


class RowParts:
    """The rows of all ranks in parts that can be matched independently."""

    def __init__(self, num_rows: int, world_size: int, folder: Path, held_rows: int) -> None:
        """Creates an empty collection.

        Args:
            num_rows: Approximate number of rows of all ranks.
            world_size: Number of ranks of the job.
            folder: Folder for temporary files.
            held_rows: Number of rows that are matched at a time.
        """
        self.held_rows, self._folder, self._world_size = held_rows, folder, world_size
        self._parts, self._partition = Parts(folder, "rows"), Partition(num_rows, held_rows, world_size)
        self._evidence: dict[int, NumberEvidence] = defaultdict(NumberEvidence)
        """Part -> evidence about its numbers, for parts with one large group."""
        self._ended = list[int]()

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, rows: pl.DataFrame, ended: Iterable[int] = ()) -> None:
        """Adds all rows of some ranks, and which of these ranks made no call after their last row (as in
        `RankRows`)."""
        self._ended += ended
        if rows.is_empty():
            return
        rows = with_corrected(rows).with_columns(pl.int_range(pl.len()).over("rank").alias(ISSUED))
        part = self._partition.parts_of(rows)
        self._parts.add(rows, part)
        for large in self._partition.large.intersection(np.unique(part).tolist()):
            self._evidence[large].add(rows.filter(pl.Series(part == large)))

    def matched(self) -> Iterator[pl.DataFrame]:
        """Yields part by part what `match` returns for its rows, with the column `ISSUED`."""
        for part in self._parts.numbers:
            if part in self._evidence:
                yield from self._large(part)
            else:
                yield match(self._parts.take(part), ended=self._ended, world_size=self._world_size)

    def _large(self, part: int) -> Iterator[pl.DataFrame]:
        """Matches a group that is larger than `held_rows`, in pieces of whole collectives."""
        evidence = self._evidence[part]
        numbering = evidence.numbering()
        pieces = Parts(self._folder, f"places{part}")
        placed = self._placed(part, evidence, numbering, pieces) if numbering else self._looked_at(part, pieces)
        self._parts.drop(part)
        for piece in pieces.numbers:
            yield match(pieces.take(piece), ended=self._ended, world_size=self._world_size, placed=placed)

    def _placed(self, part: int, evidence: NumberEvidence, numbering: Numbering, pieces: Parts) -> Placed:
        """Distributes the rows to pieces by the number that is known to tell collectives apart."""
        known = evidence.rows_by_place(numbering)
        first_of_piece = _bounds(known["place"].to_numpy(), known["rows"].to_numpy(), self.held_rows)
        for rows in self._parts.pieces(part):
            placed = numbering.with_places(rows)
            pieces.add(placed, np.searchsorted(first_of_piece, placed["place"].to_numpy(), side="right"))
        return numbering.placed

    def _looked_at(self, part: int, pieces: Parts) -> Placed:
        """Does the same if all rows have to be compared together: holds only the columns that are compared."""
        keys, methods = keys_of(calls_of(pl.concat([
            rows.select(COMPARED) for rows in self._parts.pieces(part)], rechunk=True)))
        places, counts = np.unique(keys, return_counts=True)
        first_of_piece = _bounds(places, counts, self.held_rows)
        last: dict[int, int] = {}
        taken = 0
        for rows in self._parts.pieces(part):
            mine = keys[taken:taken + len(rows)]
            taken += len(rows)
            placed = rows.with_columns(place=pl.Series(mine))
            pieces.add(placed, np.searchsorted(first_of_piece, mine, side="right"))
            last |= dict(placed.group_by("rank").agg(pl.col("place").max()).iter_rows())
        return Placed(method=methods[0], last=last)


def _bounds(places: Integers, counts: Integers, held_rows: int) -> Integers:
    """Returns the places at which pieces of about `held_rows` rows begin, except the first piece."""
    piece = (np.cumsum(counts) - 1) // held_rows
    return places[np.flatnonzero(np.diff(piece, prepend=0))]
