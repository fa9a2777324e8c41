"""Communication of a rank as sketches of fixed size: all calls counted, and times of some, the same on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CALLS_EACH,
    CELL_COLUMNS,
    KIND_COLUMNS,
    MOST_CALLS,
    MOST_CELLS,
    MOST_KINDS,
    MOST_SEQUENCES,
    NO_INTEGER,
    NO_OFFSET,
    SEQUENCE_COLUMNS,
    TIMES,
    TURNS,
    Arrivals,
    PackedTable,
)
from distprof.summaries.activities import Blocked, blocked_of, spent_of, windows_of
from distprof.summaries.channels import Cells, cells_of, labels_of, places_of
from distprof.summaries.packing import Cut, Integers, hash_of, packed_arrays
from distprof.summaries.rank_calls import RankCalls

LARGEST = 2**31 - 2
MOST_UNIT_NS = 1 << 12
"""Times that do not fit even so are no times of this step."""


def arrivals_of(calls: RankCalls, steps: Any | None, cut: Cut) -> Arrivals:
    """Sketches.

    Args:
        calls: Of the rank.
        steps: Its table of steps, where there is one.
        cut: What is left out is counted here.
    """
    if not len(calls):
        return Arrivals()
    cells, blocked, windows = cells_of(calls, cut), blocked_of(calls), windows_of(steps, calls)
    labels = labels_of(calls)
    sequence, first_cell = _sequences(cells, labels)
    kept = _kept_cells(sequence, cut)
    places = _places(cells, sequence, first_cell, kept)
    activities, spent = spent_of(calls, blocked, windows, cut)
    rows = [cells.row[cells.first[cell] + places[sequence[cell]]] for cell in kept.tolist()]
    unit_ns, base, times = _times(calls, blocked, windows, rows, cut)
    return Arrivals(
        groups=calls.groups, channels=cells.channels, kinds=_kinds(calls, cells, cut),
        sequences=_sequence_table(cells, labels, first_cell, places),
        calls=_call_table(calls, cells, first_cell, places),
        cells=_cell_table(calls, cells, kept, sequence, base),
        unit_ns=unit_ns, times=times, activities=activities, spent=spent)


def _sequences(cells: Cells, label: Integers) -> tuple[Integers, Integers]:
    """Of each cell the number of its sequence, and the first cell of each; in other turns other calls are kept."""
    numbers, first = dict[tuple[int, int, bytes], int](), list[int]()
    found = np.empty(len(cells.first), np.int64)
    for cell, (channel, step, begin, count) in enumerate(zip(cells.channel.tolist(), cells.step.tolist(),
                                                             cells.first.tolist(), cells.count.tolist(), strict=True)):
        key = channel, step % TURNS, label[cells.row[begin:begin + count]].tobytes()
        found[cell] = numbers.setdefault(key, len(numbers))
        if len(numbers) > len(first):
            first.append(cell)
    return found, np.array(first, np.int64)


def _kept_cells(sequence: Integers, cut: Cut) -> Integers:
    """Cells of sequences that there is room for, as far as there is room for cells."""
    kept = np.flatnonzero(sequence < MOST_SEQUENCES)[:MOST_CELLS]
    cut["steps of channels"] += len(sequence) - len(kept)
    return kept


def _places(cells: Cells, sequence: Integers, first_cell: Integers, kept: Integers) -> list[Any]:
    """Places of the calls whose times are kept, by sequence: half as many until they fit."""
    each = CALLS_EACH
    while True:
        found = [places_of(int(cells.count[cell]), each, int(cells.step[cell]) % TURNS,
                           is_message=cells.channels[cells.channel[cell]].op is not None)
                 for cell in first_cell[:MOST_SEQUENCES].tolist()]
        if each == 1 or sum(len(found[number]) for number in sequence[kept].tolist()) <= MOST_CALLS:
            return found
        each //= 2


def _times(calls: RankCalls, blocked: Blocked, windows: dict[int, tuple[int, int]], rows: list[Any],
           cut: Cut) -> tuple[int, Integers, dict[str, bytes]]:
    """The unit, the first call of each cell, and times from there."""
    row, counts = np.concatenate([*rows, np.empty(0, np.int64)]), [len(one) for one in rows]
    base = np.array([int(calls.enqueue[one].min()) for one in rows], np.int64)
    starts = np.array([windows[int(calls.step[one[0]])][0] for one in rows], np.int64)
    every = {name: getattr(calls, name.removesuffix("_ns"))[row] for name in TIMES[:-1]}
    since = {name: np.where(at == NO_INTEGER, NO_INTEGER, at - np.repeat(base, counts)) for name, at in every.items()}
    since[TIMES[-1]] = np.maximum(blocked.until(every["enqueue_ns"]) - np.repeat(blocked.until(starts), counts), 0)
    largest = max((int(np.abs(values[values != NO_INTEGER]).max(initial=0)) for values in since.values()), default=0)
    unit_ns = 1
    while unit_ns < MOST_UNIT_NS and largest // unit_ns > LARGEST:
        unit_ns *= 2
    return unit_ns, base, {name: _offsets(values, unit_ns, cut) for name, values in since.items()}


def _offsets(values: Integers, unit_ns: int, cut: Cut) -> bytes:
    units = values // unit_ns
    beyond = (np.abs(units) > LARGEST) & (values != NO_INTEGER)
    cut["times"] += int(beyond.sum())
    return np.where(beyond | (values == NO_INTEGER), NO_OFFSET, units).astype("<i4").tobytes()


def _sequence_table(cells: Cells, label: Integers, first_cell: Integers, places: list[Any]) -> PackedTable:
    chosen = first_cell[:len(places)]
    fingerprints = [hash_of(label[cells.row[begin:begin + count]].tobytes()) for begin, count in zip(
        cells.first[chosen].tolist(), cells.count[chosen].tolist(), strict=True)]
    return packed_arrays(SEQUENCE_COLUMNS, {
        "channel": cells.channel[chosen], "fingerprint": np.array(fingerprints, np.int64),
        "calls": cells.count[chosen], "kept": [len(one) for one in places]})


def _call_table(calls: RankCalls, cells: Cells, first_cell: Integers, places: list[Any]) -> PackedTable:
    """What the kept calls are, in the first step of their sequence."""
    row = np.concatenate([cells.row[cells.first[cell] + place] for cell, place in zip(
        first_cell.tolist(), places, strict=False)])
    return packed_arrays(CALL_COLUMNS, {
        "place": np.concatenate(places), "op": calls.op[row], "dtype": calls.dtype[row], "size_bytes": calls.size[row],
        "peer": np.where(calls.is_message, -1, np.maximum(calls.peer, -1))[row], "module_path": calls.module[row],
        "phase": calls.phase[row],
        "asynchronous": calls.asynchronous[row],
    }, {"op": calls.ops, "dtype": calls.dtypes, "module_path": calls.modules, "phase": calls.phases})


def _cell_table(calls: RankCalls, cells: Cells, kept: Integers, sequence: Integers, base: Integers) -> PackedTable:
    held, waited = held_ns(calls)[cells.row], waited_ns(calls)[cells.row]
    sums = [np.add.reduceat(values, cells.first)[kept] for values in (held, waited)]
    return packed_arrays(CELL_COLUMNS, {"step": cells.step[kept], "sequence": sequence[kept], "base_ns": base,
                                        "in_ns": sums[0], "waited_ns": sums[1]})


def held_ns(calls: RankCalls) -> Integers:
    """Time from arrival to end; 0 where that is not known."""
    known = (calls.end != NO_INTEGER) & (calls.arrival != NO_INTEGER)
    return np.where(known, np.maximum(calls.end - calls.arrival, 0), 0)


def waited_ns(calls: RankCalls) -> Integers:
    """Time in which a thread is known to have waited for it."""
    known = (calls.wait_start != NO_INTEGER) & (calls.wait_end != NO_INTEGER)
    return np.where(known, np.maximum(calls.wait_end - calls.wait_start, 0), 0)


def _kinds(calls: RankCalls, cells: Cells, cut: Cut) -> PackedTable:
    """Sums over all steps by channel, op and type."""
    row, channel = cells.row, np.repeat(cells.channel, cells.count)
    keys = np.stack((channel, calls.op[row], calls.dtype[row])).astype(np.int64)
    unique, kind, number = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    order = np.argsort(kind.reshape(-1), kind="stable")
    first, row = np.cumsum(number) - number, row[order]
    size = np.maximum(calls.size[row], 0)
    sums = {"sum_bytes": size, "in_ns": held_ns(calls)[row], "waited_ns": waited_ns(calls)[row],
            "without_end": (calls.end[row] == NO_INTEGER).astype(np.int64),
            "asynchronous": calls.asynchronous[row].astype(np.int64)}
    steps = [len(np.unique(part)) for part in np.split(calls.step[row], first[1:])]
    arrays = {"channel": unique[0], "op": unique[1], "dtype": unique[2], "calls": number, "steps": np.array(steps),
              "min_bytes": np.minimum.reduceat(size, first), "max_bytes": np.maximum.reduceat(size, first),
              **{name: np.add.reduceat(values, first) for name, values in sums.items()}}
    if len(number) > MOST_KINDS:
        cut["kinds of calls"] += len(number) - MOST_KINDS
        kept = np.sort(np.argsort(-number, kind="stable")[:MOST_KINDS])
        arrays = {name: values[kept] for name, values in arrays.items()}
    return packed_arrays(KIND_COLUMNS, arrays, {"op": calls.ops, "dtype": calls.dtypes})
