"""Measures calls of all ranks like merge/cost/measures.py measures rows, but step by step on arrays.

Only meetings are measured in which, by their fingerprints, all ranks made the same calls in each step: then the k-th
calls of all ranks belong together. The others are matched row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.contract.collective_ops import BOUNDING_CLOCKS, COLLECTIVE_OPS, WAITING_FOR_ALL
from distprof.contract.rank_summary import NO_INTEGER
from distprof.merge.clock.model import Clock, RankClocks
from distprof.merge.run.joined_calls import JoinedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMeetings:
    """Measured calls and shares of waits. Times are on the common clock."""

    calls: pl.DataFrame
    """A row per call of a meeting in a step: `step`, `meeting`, `place` (index of the call within the step), `op`,
    `dtype`, `module` and `phase` (numbers), `asynchronous`, `num_ranks`, `size_bytes`; arrivals, ends, waits and
    bandwidths as in `per_collective`; `bounds`: no rank leaves before all have entered; `by_call`: arrivals are the
    times of the calls, because starts are not known."""
    shares: pl.DataFrame
    """A row per rank and step: `waiting_ratio`, the fraction of its waits before all ranks had come, and
    `message_ratio`, the fraction of its waits in which it waited for messages in this way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Calls in one step, of meetings with equal numbers of ranks and calls."""

    step: int
    meeting: Array
    cells: Integers
    """Indices of cells; shape (meetings, ranks)."""
    first: int
    """Index of the first of these calls within each cell."""
    count: int


LARGEST = 1 << 19
"""Number of rows (calls x ranks) that are measured at once: about 150 MB."""


def measured_meetings(joined: JoinedCalls, clock: Clock, hosts: Mapping[int, Any],
                      steps: Sequence[int], odd: Array) -> MeasuredMeetings:
    """Measures the calls of some steps.

    Args:
        joined: Calls of all ranks.
        clock: The clock of the run.
        hosts: Rank -> its machine; None if not known.
        steps: The steps to measure.
        odd: Indices of meetings that are left out.
    """
    measuring = _Measuring(joined, clock, hosts, odd)
    for step in steps:
        for block in measuring.blocks(step):
            measuring.measure(block)
        measuring.end(step)
    return measuring.measured()


class _Measuring:
    def __init__(self, joined: JoinedCalls, clock: Clock, hosts: Mapping[int, Any], odd: Array) -> None:
        self._joined, self._clocks = joined, RankClocks(clock, joined.ranks)
        self._size = np.array([one.num_ranks for one in joined.meetings], np.int64)
        self._is_message = np.array([one.is_message for one in joined.meetings], bool)
        self._receiver = np.array([-1 if one.receiver is None else one.receiver for one in joined.meetings], np.int64)
        self._host = _numbers(hosts.get(rank) for rank in joined.ranks.tolist())
        is_odd = np.zeros(len(joined.meetings), bool)
        is_odd[odd] = True
        kept = np.flatnonzero(~is_odd[joined.cell_meeting])
        self._order = kept[np.argsort(joined.cell_step[kept], kind="stable")]
        self._rules = _Rules(joined.texts["op"])
        self._parts: list[dict[str, Any]] = []
        self._blocked, self._waiting, self._for_messages = np.zeros((3, len(joined.ranks)))
        self._shares: list[pl.DataFrame] = []
        self._calls: list[pl.DataFrame] = []

    def blocks(self, step: int) -> Iterator[Block]:
        """Yields blocks of the meetings of a step."""
        joined, ordered = self._joined, self._joined.cell_step[self._order]
        cells = self._order[np.searchsorted(ordered, step):np.searchsorted(ordered, step, "right")]
        cells = cells[np.lexsort((joined.cell_rank[cells], joined.cell_meeting[cells]))]
        if not len(cells):
            return
        meeting, sequence = joined.cell_meeting[cells], joined.cell_sequence[cells]
        first = np.flatnonzero(np.append(True, np.diff(meeting)))
        count, number = np.diff(np.append(first, len(cells))), meeting[first]
        calls = joined.sequence_calls[sequence[first]]
        for ranks, each in np.unique(np.stack((count, calls)), axis=1).T.tolist():
            chosen = np.flatnonzero((count == ranks) & (calls == each))
            together = max(LARGEST // (ranks * each), 1)
            most = max(LARGEST // ranks, 1)
            for some in (chosen[at:at + together] for at in range(0, len(chosen), together)):
                held = cells[first[some][:, None] + np.arange(ranks)]
                for begin in range(0, each, most):
                    yield Block(step=step, meeting=number[some], cells=held, first=begin,
                                count=min(most, each - begin))

    def measure(self, block: Block) -> None:
        """Measures the calls of a block."""
        joined, cells, index = self._joined, block.cells, self._joined.cell_rank[block.cells]
        times = self._common(block)
        enqueue, start, end = (times[name] for name in ("enqueue_ns", "start_ns", "end_ns"))
        arrival, by_call = _arrival(start, enqueue)
        held = np.where((end != NO_INTEGER) & (arrival != NO_INTEGER) & (end >= arrival), end - arrival, -1)
        place = block.first + np.arange(block.count)
        row = joined.sequence_first[joined.cell_sequence[cells]][..., None] + place
        calls = {name: values[row[:, 0]] for name, values in joined.calls.items() if name != "size_bytes"}
        size = joined.calls["size_bytes"][row].astype(np.float64)
        number, members = cells.shape
        unsure = self._clocks.uncertainty_ns(block.meeting, joined.ranks[index])[:, None]
        waits, message = self._rules.waits[calls["op"]], self._is_message[block.meeting][:, None]
        first, last = arrival.min(axis=1), arrival.max(axis=1)
        together = np.broadcast_to(~message & (members > 1), first.shape)
        comparable = together & (first != NO_INTEGER)
        all_held, all_ended = (held >= 0).all(axis=1), (end != NO_INTEGER).all(axis=1)
        first_end, last_end = end.min(axis=1), end.max(axis=1)
        contradicts = waits & comparable & all_ended & (last > first_end + np.maximum(unsure, 0))
        if ((unsure < 0) & contradicts).any():
            comparable, all_ended = comparable & (unsure >= 0), all_ended & (unsure >= 0)
        spread = np.where(comparable, last - first, -1)
        wait = np.where((waits & comparable)[:, None] & (held >= 0),
                        np.minimum(last[:, None] - arrival, held), -1)
        known = wait >= 0
        shortest = np.where(all_held, held.min(axis=1), -1)
        time = np.where(comparable & all_ended & waits & (unsure >= 0), last_end - last,
                        np.where(together & waits & all_held, shortest, -1))
        if message.any():
            receives = joined.ranks[index] == self._receiver[block.meeting][:, None]
            received = np.where(receives[..., None], end, NO_INTEGER).max(axis=1)
            is_known = (first != NO_INTEGER) & (unsure >= 0) & (received != NO_INTEGER)
            time = np.where(message, np.where(is_known, received - last, -1), time)
        algbw = np.where(time > 0, self._rules.bytes_of(calls["op"], size) / np.maximum(time, 1) * 1e9, np.nan)
        apart = np.abs(wait - (held - shortest[:, None])) > np.maximum(unsure, 0)[:, None] + shortest[:, None]
        latest = members - 1 - np.argmax(arrival[:, ::-1], axis=1)
        host = self._host[index]
        lacks = (host < 0).any(axis=1)
        # two different hosts are several, whatever the others are
        several = (host != host.max(axis=1, keepdims=True)) & (host >= 0)
        self._parts.append({
            "step": np.full((number, block.count), block.step), "meeting": np.repeat(block.meeting, block.count),
            "place": np.tile(place, (number, 1)),
            "op": np.where(message, self._rules.send, calls["op"]), "dtype": calls["dtype"],
            "module": calls["module_path"], "phase": calls["phase"], "peer": calls["peer"],
            "asynchronous": calls["asynchronous"],
            "num_ranks": np.full((number, block.count), members), "size_bytes": size.max(axis=1),
            "mean_bytes": size.mean(axis=1), "by_call": by_call, "first_arrival_ns": first, "last_arrival_ns": last,
            "last_end_ns": np.where(all_ended, last_end, NO_INTEGER),
            "arrival_spread_ns": spread, "end_spread_ns": np.where(together & all_ended, last_end - first_end, -1),
            "late_rank": np.where(comparable, joined.ranks[np.take_along_axis(index, latest, axis=1)], -1),
            "wait_ns": np.where(known.any(axis=1), np.where(known, wait, 0).sum(axis=1), -1),
            "transfer_ns": np.where(known.any(axis=1), np.where(known, held - wait, 0).sum(axis=1), -1),
            "longest_ns": held.max(axis=1), "shortest_ns": shortest,
            "num_without_end": (end == NO_INTEGER).sum(axis=1),
            "unsure": comparable & ((unsure < 0) | (spread <= unsure) | contradicts),
            "bounds": self._rules.bounds[calls["op"]] & (size.min(axis=1) > 0),
            "disagrees": np.where(waits & comparable & all_held, apart.any(axis=1), -1),
            "algbw": algbw, "busbw": algbw * self._rules.factor(calls["op"], members),
            "between_hosts": np.repeat(np.where(several.any(axis=1), 1, np.where(lacks, -1, 0)), block.count)})
        is_met = (comparable & waits) | (message & (first != NO_INTEGER) & (unsure >= 0))
        self._share(times, index, last, is_met, message)

    def _common(self, block: Block) -> dict[str, Integers]:
        rank = self._joined.cell_rank[block.cells][..., None]
        own = self._joined.own_ns(block.cells, block.first, block.count)
        return {name: self._clocks.common_ns(rank, values) for name, values in own.items()}

    def _share(self, times: Mapping[str, Integers], index: Array, last: Integers, known: Flags, message: Flags) -> None:
        """Adds how long ranks waited, and how much of that was before all had come."""
        begin, over = times["wait_start_ns"], times["wait_end_ns"]
        there = (begin != NO_INTEGER) & (over != NO_INTEGER) & known[:, None]
        blocked = np.where(there, np.maximum(over - begin, 0), 0)
        waiting = np.where(there, np.clip(last[:, None] - begin, 0, blocked), 0)
        for held, ns in ((self._blocked, blocked), (self._waiting, waiting),
                         (self._for_messages, np.where(message[:, None], waiting, 0))):
            held += np.bincount(index.reshape(-1), ns.sum(axis=2).reshape(-1), minlength=len(held))

    def end(self, step: int) -> None:
        """Collects the calls and the shares of a step."""
        there = np.flatnonzero(self._blocked > 0)
        ratios = {name: held[there] / self._blocked[there] for name, held in (
            ("waiting_ratio", self._waiting), ("message_ratio", self._for_messages))}
        self._shares.append(pl.DataFrame({"rank": self._joined.ranks[there], "step": np.full(len(there), step),
                                          **ratios}, schema=SHARES))
        for held in (self._blocked, self._waiting, self._for_messages):
            held[:] = 0
        parts, self._parts = self._parts, []
        if parts:
            self._calls.append(_frame({name: np.concatenate([part.pop(name).reshape(-1) for part in parts])
                                       for name in SCHEMA}))

    def measured(self) -> MeasuredMeetings:
        """Returns the results of all collected steps."""
        return MeasuredMeetings(calls=pl.concat([pl.DataFrame(schema=SCHEMA), *self._calls]),
                                shares=pl.concat([pl.DataFrame(schema=SHARES), *self._shares]))


def _frame(columns: Mapping[str, Array]) -> pl.DataFrame:
    """Makes a frame with nulls for unknown values."""
    found = pl.DataFrame({name: pl.Series(name, values, dtype=RAW.get(name, SCHEMA[name]))
                          for name, values in columns.items()})
    unknown = [pl.when(pl.col(name) >= 0).then(name).alias(name) for name in BELOW_0]
    unknown += [pl.when(pl.col(name) != NO_INTEGER).then(name).alias(name) for name in TIMES]
    unknown += [pl.when(pl.col(name) >= 0).then(pl.col(name) == 1).alias(name) for name in RAW]
    found = found.with_columns(*unknown, pl.col("algbw", "busbw").fill_nan(None))
    return found.with_columns(pl.when(pl.col("arrival_spread_ns").is_not_null()).then("unsure").alias("unsure"))


TIMES = ("first_arrival_ns", "last_arrival_ns", "last_end_ns")
"""Columns of times; `NO_INTEGER` stands for unknown values."""
BELOW_0 = ("arrival_spread_ns", "end_spread_ns", "late_rank", "wait_ns", "transfer_ns", "longest_ns", "shortest_ns",
           "peer")
"""Columns in which negative values stand for unknown values."""
SHARES: dict[str, Any] = {"rank": pl.Int64, "step": pl.Int64, "waiting_ratio": pl.Float64, "message_ratio": pl.Float64}
RAW: dict[str, Any] = dict.fromkeys(("asynchronous", "disagrees", "between_hosts"), pl.Int8)
"""Flags that may be unknown (-1), while they are numbers."""
SCHEMA: dict[str, Any] = {
    "step": pl.Int64, **dict.fromkeys(("meeting", "op", "dtype", "module", "phase"), pl.Int32),
    **dict.fromkeys(("place", "num_ranks", "num_without_end"), pl.Int32),
    **dict.fromkeys(("size_bytes", *TIMES, *BELOW_0), pl.Int64),
    **dict.fromkeys(("unsure", "bounds", "by_call", *RAW), pl.Boolean),
    **dict.fromkeys(("mean_bytes", "algbw", "busbw"), pl.Float64)}


def _arrival(start: Integers, enqueue: Integers) -> tuple[Integers, Flags]:
    """Returns the start if all ranks of a call have one, else the time of the call if all have that (like is compared
    with like); and whether it is the time of the call."""
    no_start, no_enqueue = ((times == NO_INTEGER).any(axis=1)[:, None] for times in (start, enqueue))
    by_call = no_start & ~no_enqueue
    return np.where(by_call, enqueue, np.where(start != NO_INTEGER, start, enqueue)), by_call[:, 0]


def _numbers(hosts: Iterator[Any]) -> Integers:
    known = dict[Any, int]()
    return np.array([-1 if host is None else known.setdefault(host, len(known)) for host in hosts], np.int64)


class _Rules:
    """How ops are measured, indexed by their numbers."""

    def __init__(self, ops: Sequence[str]) -> None:
        rows = [COLLECTIVE_OPS.get(name) for name in ops]
        self.waits = np.array([name in WAITING_FOR_ALL for name in ops], bool)
        self.send = ops.index("send") if "send" in ops else -1
        self.bounds = np.array([name in BOUNDING_CLOCKS for name in ops], bool)
        self._size = np.array([{"sum": 1, "mean": 2}.get(row.size if row else "max", 0) for row in rows])
        self._factor = [row.bus_factor if row else None for row in rows]

    def bytes_of(self, op: Array, size: Floats) -> Floats:
        """Returns the bytes as nccl-tests count them; NaN if there are none."""
        known = (size >= 0).all(axis=1)
        found = np.choose(self._size[op], (size.max(axis=1), size.sum(axis=1), size.mean(axis=1)))
        return np.where(known & (found > 0), found, np.nan)

    def factor(self, op: Array, members: int) -> Floats:
        """Returns busbw / algbw."""
        share = 1 - 1 / members
        each = {"ring twice": 2 * share, "ring": share, "once": 1.0, None: np.nan}
        return np.array([each[rule] for rule in self._factor])[op]
