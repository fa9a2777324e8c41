"""Arrivals of all ranks, joined: cells of a rank, a step and a meeting, and the calls whose times were kept in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CELL_COLUMNS,
    KIND_COLUMNS,
    NO_OFFSET,
    SEQUENCE_COLUMNS,
    SPENT_COLUMNS,
    TIMES,
    Activity,
    Arrivals,
    Channel,
    PackedTable,
    RankGroup,
)
from distprof.freed_memory import uncollected
from distprof.merge.run.summaries.summaries import ColumnJoin, Summaries

CELLS = {name: kind for name, kind in CELL_COLUMNS.items() if name != "in_ns"}
"""Columns of cells that are joined."""
SIZES = [[(name, np.dtype(kind).itemsize) for name, kind in kinds.items()] for kinds in (
    CELLS, SEQUENCE_COLUMNS, CALL_COLUMNS, KIND_COLUMNS, SPENT_COLUMNS)]
"""Columns of each table, with the bytes of a value."""
BASE = "base_ns"
TEXTS = ("op", "dtype", "module_path", "phase")
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Ranks that meet: a process group, or the sender and the receiver of messages."""

    group: RankGroup
    sender: int | None = None
    """None: collectives of the group."""
    receiver: int | None = None

    @property
    def num_ranks(self) -> int:
        return self.group.num_ranks if self.sender is None else 2

    @property
    def is_message(self) -> bool:
        return self.sender is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedArrivals:
    """Arrays over all ranks. `cell_rank` and the like are indices of `ranks`; texts are numbers, -1 for null."""

    ranks: Any
    """Numbers of the ranks that have arrivals, ascending."""
    meetings: Sequence[Meeting]
    cell_rank: Any
    cell_step: Any
    cell_meeting: Any
    cell_sequence: Any
    """Index into the next five."""
    sequence_fingerprint: Any
    sequence_calls: Any
    sequence_kept: Any
    sequence_first: Any
    """First row of its kept calls in `calls`."""
    base_ns: Any
    """Of each cell, its first kept call, on the rank's own clock; empty where no times were asked for."""
    waited_ns: Any
    """Of each cell, how long its rank is known to have waited for its calls."""
    cell_first: Any
    """First value of each cell in `times`; empty likewise."""
    unit_ns: Any
    """Of each rank."""
    times: Mapping[str, Any]
    """int32, in units behind `base_ns`; `NO_OFFSET` where it is not known."""
    calls: Mapping[str, Any]
    """Kept calls of sequences; see `CALL_COLUMNS`."""
    kinds: Mapping[str, Any]
    """`KIND_COLUMNS` of all ranks, with `rank` and `meeting` in place of `channel`."""
    texts: Mapping[str, Sequence[str]]
    """op, dtype, module_path and phase: what numbers in `calls` and `kinds` stand for."""
    activities: Sequence[Activity]
    spent: Mapping[str, Any]
    """`SPENT_COLUMNS` of all ranks, with `rank`; `activity` is an index of `activities`."""

    def own_ns(self, name: str, cells: Any, count: int) -> Any:
        """Times of the first kept calls of some cells on the clocks of their ranks; shape (*cells, count), int64.

        Args:
            name: One of `times`.
            cells: Indices, of any shape; each has as many kept calls.
            count: How many of them.
        """
        units = self.times[name][self.cell_first[cells][..., None] + np.arange(count)].astype(np.int64)
        scaled = units * self.unit_ns[self.cell_rank[cells]][..., None]
        base = 0 if name == TIMES[-1] else self.base_ns[cells][..., None]
        return np.where(units == NO_OFFSET, np.iinfo(np.int64).min, base + scaled)


def joined_arrivals(summaries: Summaries, *, times: Collection[str] = TIMES,
                    spent: Collection[str] | None = None, steps: Collection[int] | None = None) -> JoinedArrivals:
    """Reads and joins the arrivals of all ranks that have some.

    Args:
        summaries: Of the run.
        times: Those that are wanted.
        spent: Kinds of activities that are wanted; None: all.
        steps: Those that are wanted; None: all.
    """
    joining = _Joining(times, spent, steps)
    with uncollected():
        for rank, found in summaries.arrivals():
            joining.add(rank, found)
    return joining.joined()


class _Joining:
    """Takes ranks one by one."""

    def __init__(self, times: Collection[str], spent: Collection[str] | None, steps: Collection[int] | None) -> None:
        self._wanted, self._steps = spent, None if steps is None else np.array(sorted(steps), np.int64)
        self._ranks: list[int] = []
        self._units: list[int] = []
        self._meetings = dict[tuple[Any, ...], int]()
        self._meeting_list: list[Meeting] = []
        self._channel_meeting: list[int] = []
        self._channel_first: list[int] = []
        self._templates = dict[Any, int]()
        self._template: list[int] = []
        self._template_first: list[int] = []
        self._cells = ColumnJoin({name: kind for name, kind in CELLS.items() if times or name != BASE})
        self._sequences, self._calls = ColumnJoin(SEQUENCE_COLUMNS), ColumnJoin(CALL_COLUMNS, TEXTS)
        self._kinds, self._spent = ColumnJoin(KIND_COLUMNS, ("op", "dtype")), ColumnJoin(SPENT_COLUMNS)
        self._times = {name: bytearray() for name in times}
        self._activities = dict[Activity, int]()
        self._num_sequences = 0

    def add(self, rank: int, found: Arrivals) -> None:
        """Takes a rank whose tables agree with each other; others are damaged, and not there."""
        if not found.channels or not self._agrees(found):
            return
        index = len(self._ranks)
        self._ranks.append(rank)
        self._units.append(found.unit_ns)
        self._channel_first.append(len(self._channel_meeting))
        self._channel_meeting += [self._meeting(rank, found, channel) for channel in found.channels]
        self._template.append(self._template_of(found))
        self._kinds.add(index, found.kinds)
        self._spent.add(index, self._spent_of(found))
        self._add_cells(index, found)

    def _add_cells(self, index: int, found: Arrivals) -> None:
        if self._steps is None:
            self._cells.add(index, found.cells)
            for name, held in self._times.items():
                held += found.times[name]
            return
        chosen = np.isin(np.frombuffer(found.cells.columns["step"], "<i4"), self._steps)
        kept, sequence = (np.frombuffer(column, "<i4") for column in (
            found.sequences.columns["kept"], found.cells.columns["sequence"]))
        calls = np.repeat(chosen, kept[sequence])
        self._cells.add(index, PackedTable(rows=int(chosen.sum()), columns={
            name: np.frombuffer(found.cells.columns[name], kind)[chosen].tobytes()
            for name, kind in CELLS.items()}))
        for name, held in self._times.items():
            held += np.frombuffer(found.times[name], "<i4")[calls].tobytes()

    def _spent_of(self, found: Arrivals) -> PackedTable:
        """What a rank did, with activities numbered as those of all ranks."""
        own = np.frombuffer(found.spent.columns["activity"], "<i4") if found.spent.rows else np.empty(0, "<i4")
        if not len(own) or int(own.max()) >= len(found.activities) or int(own.min()) < 0:
            return PackedTable()
        numbers = np.array([self._activities.setdefault(one, len(self._activities))
                            if self._wanted is None or one.kind in self._wanted else -1
                            for one in found.activities], "<i4")
        columns, activity = dict(found.spent.columns), numbers[own]
        held = activity >= 0
        if self._steps is not None:
            held &= np.isin(np.frombuffer(columns["step"], "<i4"), self._steps)
        if not held.all():
            columns = {name: np.frombuffer(columns[name], kind)[held].tobytes() for name, kind in SPENT_COLUMNS.items()}
        return PackedTable(rows=int(held.sum()), columns={**columns, "activity": activity[held].tobytes()})

    def _agrees(self, found: Arrivals) -> bool:
        """False where a table lacks a column, or points to what is not there."""
        try:
            return self._is_whole(found)
        except (KeyError, ValueError, IndexError):
            return False

    def _is_whole(self, found: Arrivals) -> bool:
        if {*found.times} < {*self._times} or any(
                channel.group >= len(found.groups) for channel in found.channels):
            return False
        kept, sequence = (np.frombuffer(column, "<i4") for column in (
            found.sequences.columns["kept"], found.cells.columns["sequence"]))
        if len(sequence) and (int(sequence.max()) >= len(kept) or int(sequence.min()) < 0):
            return False
        tables = zip((found.cells, found.sequences, found.calls, found.kinds, found.spent), SIZES, strict=True)
        if any(len(table.columns[name]) != table.rows * size
               for table, sizes in tables if table.rows for name, size in sizes):
            return False
        channels = [np.frombuffer(table.columns["channel"], "<i4") for table in (found.sequences, found.kinds)]
        if any(len(one) and not 0 <= int(one.min()) <= int(one.max()) < len(found.channels) for one in channels):
            return False
        number = int(kept[sequence].sum())
        return int(kept.sum()) == found.calls.rows and all(len(found.times[name]) == 4 * number for name in self._times)

    def _meeting(self, rank: int, found: Arrivals, channel: Channel) -> int:
        group = found.groups[channel.group]
        sender, receiver = ((None, None) if channel.peer is None else
                            (rank, channel.peer) if channel.op == "send" else (channel.peer, rank))
        key = (group.name, group.description, group.digest, sender, receiver)
        number = self._meetings.setdefault(key, len(self._meeting_list))
        if number == len(self._meeting_list):
            self._meeting_list.append(Meeting(group=group, sender=sender, receiver=receiver))
        return number

    def _template_of(self, found: Arrivals) -> int:
        """Ranks of a stage call the same: their sequences are kept once."""
        sequences, calls = found.sequences.columns, found.calls.columns
        key = (*(sequences[name] for name in SEQUENCE_COLUMNS), *(calls[name] for name in CALL_COLUMNS),
               *(tuple(texts) for texts in found.calls.texts.values()))
        number = self._templates.setdefault(key, len(self._templates))
        if number == len(self._template_first):
            self._template_first.append(self._num_sequences)
            self._sequences.add(number, found.sequences)
            self._calls.add(number, found.calls)
            self._num_sequences += found.sequences.rows
        return number

    def joined(self) -> JoinedArrivals:
        """All of it, ranks ascending."""
        cells, sequences, calls, kinds = (one.joined() for one in (
            self._cells, self._sequences, self._calls, self._kinds))
        order = np.argsort(np.array(self._ranks, np.int64), kind="stable")
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order))
        channel_first, channel_meeting = (np.array(one, np.int32) for one in (
            self._channel_first, self._channel_meeting))
        template_first = np.array(self._template_first, np.int32)[np.array(self._template, np.int32)]
        sequence = template_first[cells.rank] + cells.columns["sequence"]
        every = {**kinds.columns, "rank": _placed(place, kinds.rank),
                 "meeting": channel_meeting[channel_first[kinds.rank] + kinds.columns["channel"]]}
        renumbered, texts = _same_texts(kinds.texts, calls.texts, every)
        spent, kept = self._spent.joined(), sequences.columns["kept"].astype(np.int64)
        return JoinedArrivals(
            ranks=np.array(self._ranks, np.int64)[order], meetings=self._meeting_list,
            cell_rank=_placed(place, cells.rank), cell_step=cells.columns["step"],
            cell_meeting=channel_meeting[channel_first[cells.rank] + sequences.columns["channel"][sequence]],
            cell_sequence=sequence, sequence_fingerprint=sequences.columns["fingerprint"],
            sequence_calls=sequences.columns["calls"], sequence_kept=kept, sequence_first=_firsts(kept),
            base_ns=cells.columns.get(BASE, NONE), waited_ns=cells.columns["waited_ns"],
            cell_first=_firsts(kept[sequence]) if self._times else NONE, unit_ns=np.array(self._units, np.int64)[order],
            times={name: np.frombuffer(held, "<i4") for name, held in self._times.items()},
            calls=calls.columns, kinds=renumbered, texts=texts, activities=list(self._activities),
            spent={**spent.columns, "rank": _placed(place, spent.rank)})


def _placed(place: Any, rank: Any) -> Any:
    """`place[rank]`; no copy where ranks came in order, as they do from the file of one host."""
    return rank if (place[:-1] < place[1:]).all() else place[rank]


def _firsts(counts: Any) -> Any:
    """Where each of some lists begins, one behind the other."""
    return np.cumsum(counts) - counts


def _same_texts(kinds: Mapping[str, Sequence[str]], calls: Mapping[str, Sequence[str]],
                rows: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Kinds with the numbers that kept calls have for texts, to which those are added that these lack."""
    texts, found = {name: list(of) for name, of in calls.items()}, dict(rows)
    if "recv" in texts["op"] and "send" not in texts["op"]:
        texts["op"].append("send")  # both sides of a message are called so
    for name in ("op", "dtype"):
        known = {text: number for number, text in enumerate(texts[name])}
        numbers = np.array([*(known.setdefault(text, len(known)) for text in kinds[name]), -1], np.int64)
        found[name], texts[name] = numbers[rows[name]], list(known)
    return found, texts
