"""Joins the calls of all ranks into arrays: cells, each of one rank, step and meeting, and the times of their calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Array, Integers
from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CELL_COLUMNS,
    NO_INTEGER,
    NO_OFFSET,
    SEQUENCE_COLUMNS,
    TIMES,
    WAIT_COLUMNS,
    Arrivals,
    Channel,
    RankGroup,
)
from distprof.freed_memory import uncollected
from distprof.merge.run.summaries.frames import calls_of_cells, is_whole
from distprof.merge.run.summaries.joined_columns import ColumnJoin

CELLS = {name: kind for name, kind in CELL_COLUMNS.items() if not name.startswith("first_")}
SEQUENCES = SEQUENCE_COLUMNS
CALLS = {name: CALL_COLUMNS[name] for name in (
    "op", "dtype", "size_bytes", "peer", "module_path", "phase", "asynchronous")}
"""Columns of calls that are joined."""
TEXTS = ("op", "dtype", "module_path", "phase")
INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Ranks that communicate with each other: a process group, or the sender and the receiver of messages."""

    group: RankGroup
    sender: int | None = None
    """None for collectives of the group."""
    receiver: int | None = None

    @property
    def num_ranks(self) -> int:
        return self.group.num_ranks if self.sender is None else len(self.ranks)

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks of the group; for messages, the two sides, or the one rank that sends to itself."""
        if self.sender is None or self.receiver is None:
            return self.group.ranks
        return sorted({self.sender, self.receiver})

    @property
    def is_message(self) -> bool:
        return self.sender is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCalls:
    """Calls of all ranks. `cell_rank` and similar arrays hold indices into `ranks`; texts are numbers, -1 for null."""

    ranks: Integers
    """Numbers of the ranks that have calls, ascending."""
    meetings: Sequence[Meeting]
    cell_rank: Array
    cell_step: Array
    cell_meeting: Array
    cell_sequence: Array
    """For each cell, the index of its sequence in the next three arrays."""
    sequence_fingerprint: Integers
    sequence_calls: Integers
    sequence_first: Array
    """For each sequence, the row of its first call in `calls`."""
    base_ns: Integers
    """For each cell, when its first call was issued, on the rank's own clock."""
    in_ns: Integers
    """For each cell, how long its calls were under way, summed over the calls."""
    waited_ns: Integers
    """For each cell, how long its rank is known to have waited for its calls."""
    cell_first: Array
    """For each cell of the requested steps, the index of its first value in `times`."""
    unit_ns: Integers
    """For each rank, the unit of its `times`."""
    times: Mapping[str, Array]
    """Times of calls as int32; see `Arrivals`."""
    calls: Mapping[str, Array]
    """Calls of the sequences; see `CALL_COLUMNS`."""
    texts: Mapping[str, Sequence[str]]
    """op, dtype, module_path and phase -> the texts that the numbers in `calls` stand for."""
    waits: Mapping[str, Array]
    """`WAIT_COLUMNS` of all ranks, and `rank`."""

    def own_ns(self, cells: Integers, first: int, count: int) -> dict[str, Integers]:
        """Returns times of some calls of some cells on the clocks of their ranks: for each of `TIMES`, shape (*cells,
        count).

        Args:
            cells: Indices of cells, of any shape. Each cell must have at least `first + count` calls.
            first: Index of the first wanted call within each cell.
            count: Number of calls per cell.
        """
        at = self.cell_first[cells][..., None] + (first + np.arange(count))
        unit = self.unit_ns[self.cell_rank[cells]][..., None]
        given = {name: values[at] for name, values in self.times.items()}
        since = {name: np.where(values == NO_OFFSET, NO_INTEGER, values * unit) for name, values in given.items()}
        called = self.base_ns[cells][..., None] + since[TIMES[0]]
        found = {name: np.where(values == NO_INTEGER, NO_INTEGER, called + values) for name, values in since.items()}
        end, over = found["end_ns"], since["wait_end_ns"]
        return {**found, "enqueue_ns": called,
                "wait_end_ns": np.where((end != NO_INTEGER) & (over != NO_INTEGER), end + over, found["wait_end_ns"])}


def joined_calls(arrivals: Iterable[tuple[int, Arrivals]], steps: Collection[int]) -> JoinedCalls:
    """Joins the calls of all ranks that made any.

    Args:
        arrivals: Ranks with their calls, as `Run.arrivals` reads them.
        steps: Steps whose times of calls are wanted.
    """
    joining = _Joining(steps)
    with uncollected():
        for rank, found in arrivals:
            joining.add(rank, found)
    return joining.joined()


class _Joining:
    """Joins ranks that are added one by one."""

    def __init__(self, steps: Collection[int]) -> None:
        self._steps = np.array(sorted(steps), np.int64)
        self._ranks: list[int] = []
        self._units: list[int] = []
        self._meetings = dict[tuple[Any, ...], int]()
        self._meeting_list: list[Meeting] = []
        self._channel_meeting: list[int] = []
        self._channel_first: list[int] = []
        self._templates = dict[Any, int]()
        self._template: list[int] = []
        self._template_first: list[int] = []
        self._cells, self._waits = ColumnJoin(CELLS), ColumnJoin(WAIT_COLUMNS)
        self._sequences, self._calls = ColumnJoin(SEQUENCES), ColumnJoin(CALLS, TEXTS)
        self._times = {name: bytearray() for name in TIMES}
        self._num_sequences = 0

    def add(self, rank: int, found: Arrivals) -> None:
        """Adds a rank. A rank without channels, or with damaged tables that contradict each other, is ignored."""
        if not found.channels or not is_whole(found):
            return
        index = len(self._ranks)
        self._ranks.append(rank)
        self._units.append(found.unit_ns)
        self._channel_first.append(len(self._channel_meeting))
        self._channel_meeting += [self._meeting(rank, found, channel) for channel in found.channels]
        self._template.append(self._template_of(found))
        self._waits.add(index, found.waits)
        self._add_cells(index, found)

    def _add_cells(self, index: int, found: Arrivals) -> None:
        self._cells.add(index, found.cells)
        chosen = np.isin(np.frombuffer(found.cells.columns["step"], "<i4"), self._steps)
        calls = np.repeat(chosen, calls_of_cells(found))
        for name, held in self._times.items():
            held += np.frombuffer(found.times[name], "<i4")[calls].tobytes()

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
        """Returns the number of a rank's sequences and calls, stored once for ranks that make the same calls."""
        sequences, calls = found.sequences.columns, found.calls.columns
        key = (*(sequences[name] for name in SEQUENCES), *(calls[name] for name in CALLS),
               *(tuple(found.calls.texts[name]) for name in TEXTS))
        number = self._templates.setdefault(key, len(self._templates))
        if number == len(self._template_first):
            self._template_first.append(self._num_sequences)
            self._sequences.add(number, found.sequences)
            self._calls.add(number, found.calls)
            self._num_sequences += found.sequences.rows
        return number

    def joined(self) -> JoinedCalls:
        """Returns everything that was added, with ranks in ascending order."""
        cells, sequences, calls, waits = (one.joined() for one in (
            self._cells, self._sequences, self._calls, self._waits))
        order = np.argsort(np.array(self._ranks, np.int64), kind="stable")
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order))
        channel_first, channel_meeting = (np.array(one, np.int32) for one in (
            self._channel_first, self._channel_meeting))
        template_first = np.array(self._template_first, np.int32)[np.array(self._template, np.int32)]
        sequence = template_first[cells.rank] + cells.columns["sequence"]
        number = sequences.columns["calls"].astype(np.int64)
        return JoinedCalls(
            ranks=np.array(self._ranks, np.int64)[order], meetings=self._meeting_list,
            cell_rank=_placed(place, cells.rank), cell_step=cells.columns["step"],
            cell_meeting=channel_meeting[channel_first[cells.rank] + sequences.columns["channel"][sequence]],
            cell_sequence=sequence, sequence_fingerprint=sequences.columns["fingerprint"],
            sequence_calls=number, sequence_first=_firsts(number),
            **{name: cells.columns[name] for name in ("base_ns", "in_ns", "waited_ns")},
            cell_first=_firsts(np.where(np.isin(cells.columns["step"], self._steps), number[sequence], 0)),
            unit_ns=np.array(self._units, np.int64)[order],
            times={name: np.frombuffer(held, "<i4") for name, held in self._times.items()},
            calls=calls.columns, texts=_with_sends(calls.texts),
            waits={**waits.columns, "rank": _placed(place, waits.rank)})


def _placed(place: Array, rank: Array) -> Array:
    """Returns `place[rank]`, without a copy if ranks were added in order, as they are from the file of one host."""
    return rank if (place[:-1] < place[1:]).all() else place[rank]


def _firsts(counts: Integers) -> Array:
    """Returns the start of each list if lists of these lengths are concatenated; int32 if that suffices."""
    ends = np.cumsum(counts)
    return (ends - counts).astype(np.int32 if not len(ends) or ends[-1] <= INT32.max else np.int64)


def _with_sends(texts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Adds "send" to the texts of ops if it is missing: both sides of a message are called sends."""
    found = {name: list(of) for name, of in texts.items()}
    return found if "send" in found["op"] else {**found, "op": [*found["op"], "send"]}
