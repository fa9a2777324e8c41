"""Communication of a rank in arrays that can be joined with those of other ranks: what each call is, and its times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Integers
from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CELL_COLUMNS,
    NO_INTEGER,
    NO_OFFSET,
    NUMBERS,
    SEQUENCE_COLUMNS,
    TIMES,
    UNKNOWN,
    WAIT_COLUMNS,
    Arrivals,
    PackedTable,
)
from distprof.summaries.packing import hash_of, integers, packed_arrays
from distprof.summaries.rank_calls import Cells, RankCalls, cells_of, labels_of

LARGEST = 2**31 - 2
MOST_UNIT_NS = 1 << 12
"""Largest unit; times that do not fit even in this unit are not times of this step."""


def arrivals_of(calls: RankCalls, steps: Any | None) -> Arrivals:
    """Packs all calls of a rank.

    Args:
        calls: The calls.
        steps: The rank's table of steps, if there is one.
    """
    if not len(calls):
        return Arrivals()
    cells = cells_of(calls)
    sequence, first_cell = _sequences(calls, cells)
    unit_ns, base, times = _times(calls, cells)
    firsts, numbers = _numbers(calls, cells)
    return Arrivals(
        groups=calls.groups, channels=cells.channels, sequences=_sequence_table(calls, cells, first_cell),
        calls=_call_table(calls, cells, first_cell), cells=_cell_table(calls, cells, sequence, base, firsts),
        unit_ns=unit_ns, times=times, numbers=numbers, waits=_waits(calls, steps))


def _sequences(calls: RankCalls, cells: Cells) -> tuple[Integers, Integers]:
    """Returns the sequence number of each cell, and the first cell of each sequence."""
    what = np.stack((calls.op, calls.dtype, calls.size, calls.elements, _peer(calls), calls.tag, calls.module,
                     calls.phase, calls.timed_by, calls.asynchronous, _autograd(calls))).astype(np.int64)
    alike = np.unique(what, axis=1, return_inverse=True)[1].reshape(-1)[cells.row]
    numbers, first = dict[tuple[int, bytes], int](), list[int]()
    found = np.empty(len(cells.first), np.int64)
    for cell, (channel, begin, count) in enumerate(zip(cells.channel.tolist(), cells.first.tolist(),
                                                       cells.count.tolist(), strict=True)):
        found[cell] = numbers.setdefault((channel, alike[begin:begin + count].tobytes()), len(numbers))
        if len(numbers) > len(first):
            first.append(cell)
    return found, np.array(first, np.int64)


def _peer(calls: RankCalls) -> Integers:
    """Returns roots only: the peer of a message is that of its channel, so calls to different peers are alike."""
    return np.where(calls.is_message, NO_INTEGER, calls.peer)


def _autograd(calls: RankCalls) -> Integers:
    return np.where(calls.cut_off, 0, np.where(calls.joined, 1, UNKNOWN))


def _times(calls: RankCalls, cells: Cells) -> tuple[int, Integers, dict[str, bytes]]:
    """Returns the unit, the first call time of each cell, and the times of calls, in the order of cells."""
    at = {name: getattr(calls, name.removesuffix("_ns"))[cells.row] for name in TIMES}
    base = np.minimum.reduceat(at["enqueue_ns"], cells.first)
    since = {name: _since(values, np.repeat(base, cells.count) if name == TIMES[0] else at["enqueue_ns"])
             for name, values in at.items()}
    ended = at["end_ns"] != NO_INTEGER
    since["wait_end_ns"] = np.where(ended, _since(at["wait_end_ns"], at["end_ns"]), since["wait_end_ns"])
    largest = max(int(np.abs(values[values != NO_INTEGER]).max(initial=0)) for values in since.values())
    unit_ns = 1
    while unit_ns < MOST_UNIT_NS and largest // unit_ns > LARGEST:
        unit_ns *= 2
    return unit_ns, base, {name: _offsets(values, unit_ns) for name, values in since.items()}


def _since(values: Integers, origin: Integers) -> Integers:
    return np.where(values == NO_INTEGER, NO_INTEGER, values - origin)


def _offsets(values: Integers, unit_ns: int) -> bytes:
    units = values // unit_ns
    beyond = (np.abs(units) > LARGEST) | (values == NO_INTEGER)
    return np.where(beyond, NO_OFFSET, units).astype("<i4").tobytes()


def _numbers(calls: RankCalls, cells: Cells) -> tuple[dict[str, Integers], dict[str, bytes]]:
    """Returns the first number of each cell, and how the others deviate from counting on, which is rare."""
    place = np.arange(len(cells.row)) - np.repeat(cells.first, cells.count)
    firsts, found = dict[str, Integers](), dict[str, bytes]()
    for name in NUMBERS:
        values = getattr(calls, name)[cells.row]
        firsts[f"first_{name}"] = values[cells.first]
        before = np.repeat(values[cells.first], cells.count)
        known = (values != NO_INTEGER) & (before != NO_INTEGER)
        beside = np.where(known, values - before - place, NO_OFFSET)
        found[name] = beside.astype("<i4").tobytes() if beside.any() else b""
    return firsts, found


def _sequence_table(calls: RankCalls, cells: Cells, first_cell: Integers) -> PackedTable:
    label = labels_of(calls)
    fingerprints = [hash_of(label[cells.row[begin:begin + count]].tobytes()) for begin, count in zip(
        cells.first[first_cell].tolist(), cells.count[first_cell].tolist(), strict=True)]
    return packed_arrays(SEQUENCE_COLUMNS, {
        "channel": cells.channel[first_cell], "fingerprint": np.array(fingerprints, np.int64),
        "calls": cells.count[first_cell]})


def _call_table(calls: RankCalls, cells: Cells, first_cell: Integers) -> PackedTable:
    """Packs what calls are, from the first cell of each sequence."""
    row = np.concatenate([cells.row[cells.first[cell]:cells.first[cell] + cells.count[cell]]
                          for cell in first_cell.tolist()])
    peer = _peer(calls)
    return packed_arrays(CALL_COLUMNS, {
        "op": calls.op[row], "dtype": calls.dtype[row], "size_bytes": calls.size[row],
        "num_elements": calls.elements[row], "peer": peer[row], "tag": calls.tag[row],
        "module_path": calls.module[row], "phase": calls.phase[row], "timed_by": calls.timed_by[row],
        "asynchronous": calls.asynchronous[row], "in_autograd": _autograd(calls)[row],
    }, {"op": calls.ops, "dtype": calls.dtypes, "module_path": calls.modules, "phase": calls.phases,
        "timed_by": calls.ways})


def _cell_table(calls: RankCalls, cells: Cells, sequence: Integers, base: Integers,
                firsts: dict[str, Integers]) -> PackedTable:
    held, waited = (np.add.reduceat(values[cells.row], cells.first) for values in (held_ns(calls), waited_ns(calls)))
    return packed_arrays(CELL_COLUMNS, {"step": cells.step, "sequence": sequence, "base_ns": base, "in_ns": held,
                                        "waited_ns": waited, **firsts})


def held_ns(calls: RankCalls) -> Integers:
    """Returns the time from arrival to end of each call; 0 if unknown."""
    return _between(calls.arrival, calls.end)


def waited_ns(calls: RankCalls) -> Integers:
    """Returns the time that a thread is known to have waited for each call; 0 if unknown."""
    return _between(calls.wait_start, calls.wait_end)


def _between(starts: Integers, ends: Integers) -> Integers:
    known = (starts != NO_INTEGER) & (ends != NO_INTEGER)
    return np.where(known, np.maximum(ends - starts, 0), 0)


# --- how long steps wait ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Intervals that do not overlap, ascending."""

    starts: Integers
    ends: Integers
    before: Integers
    """Total length of the intervals before each one."""

    def until(self, at: Integers) -> Integers:
        """Returns the total length of the intervals up to each of these times."""
        if not len(self.starts):
            return np.zeros(len(at), np.int64)
        index = np.searchsorted(self.starts, at, "right") - 1
        inside = np.clip(at - self.starts[index], 0, self.ends[index] - self.starts[index])
        return np.where(index >= 0, self.before[index] + inside, 0)


def covered(starts: Integers, ends: Integers) -> Covered:
    """Returns the union of intervals, ignoring unknown ones."""
    known = (starts != NO_INTEGER) & (ends > starts)
    order = np.argsort(starts[known], kind="stable")
    starts, ends = starts[known][order], ends[known][order]
    if len(starts):
        reach = np.maximum.accumulate(ends)
        starts = np.maximum(starts, np.append(starts[:1], reach[:-1]))
        ends = np.maximum(ends, starts)
    return Covered(starts=starts, ends=ends, before=np.cumsum(ends - starts) - (ends - starts))


def windows_of(steps: Any | None, calls: RankCalls) -> dict[int, tuple[int, int]]:
    """Returns step -> start and end, from the table of steps, or else from the calls in it."""
    order = np.argsort(calls.step, kind="stable")
    numbers, first = np.unique(calls.step[order], return_index=True)
    starts = np.minimum.reduceat(calls.enqueue[order], first)
    ends = np.maximum.reduceat(np.maximum(calls.enqueue, calls.end)[order], first)
    found = dict(zip(numbers.tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True))
    if steps is not None:
        begins, stops = (integers(steps, name).tolist() for name in ("start_ns", "end_ns"))
        found |= {number: (start, end) for number, start, end in zip(
            integers(steps, "step").tolist(), begins, stops, strict=True) if number in found and end > start}
    return found


def _waits(calls: RankCalls, steps: Any | None) -> PackedTable:
    windows = windows_of(steps, calls)
    edges = np.array(list(windows.values()), np.int64).reshape(-1, 2)
    spent = [each.until(edges[:, 1]) - each.until(edges[:, 0]) for each in (
        covered(calls.wait_start, calls.wait_end), covered(calls.arrival, calls.end))]
    return packed_arrays(WAIT_COLUMNS, {"step": np.array(list(windows), np.int64), "blocked_ns": spent[0],
                                        "in_ns": spent[1]})
