"""Rows of all ranks resampled to common step ranges, and blocks of rows. Memory is bounded: old data gets coarser."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.arrays import Array, Floats, Integers
from distprof.contract.watch import UNKNOWN
from distprof.merge.watch.pieces import Columns

SUMS = ("span_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "gc_ns", "device_ns")
SPANS = SUMS[:5]
"""Times of the host, which may be ahead of the device."""
LEVELS = ("host_bytes", "device_bytes")
FIELDS = (*SUMS, *LEVELS)
BLOCK = 8
"""Rows per block. A block holds their median, so one or two long steps do not affect it."""
FINE = 2048
"""Newest rows that are kept unchanged, to locate the step of an onset: 7 minutes of rows of 0.2 s."""
MOST = 1024
"""Most blocks (27 minutes of rows of 0.2 s). Beyond it, all but the newest `MOST` / 8 are joined."""
LAGGING_NS, LAGGING_ROWS = 15_000_000_000, 3
"""A rank is not waited for if another one has gone on for at least 15 s and 3 rows since the last step of the first:
by the spans of its own rows, as clocks of ranks may differ."""


class Grid:
    """Rows and blocks of all ranks: `FIELDS` as means per step, nan where unknown."""

    def __init__(self) -> None:
        """Starts without ranks."""
        self.ranks: list[int] = []
        self.first = np.empty(0, np.int64)
        """First step of each row."""
        self.count = np.empty(0)
        """Number of steps of each row."""
        self.end_ns = np.empty(0)
        """End of each row, in ns since the epoch, by the clock of the rank whose rows set the step ranges."""
        self.rows = np.empty((0, 0, len(FIELDS)), np.float32)
        """Shape (rows, ranks, fields)."""
        self.blocks = Blocks()
        self._pending: dict[int, list[Columns]] = {}
        self._last: dict[int, int] = {}
        """By rank: the step after its last row."""
        self._recent: dict[int, tuple[Integers, Integers]] = {}
        """By rank, for its rows of the last 15 s and one before: the step after each, and the sum of spans up to it."""
        self._blocked = 0
        """Number of rows in `rows` that are already in a block."""
        self._start: int | None = None
        """First step of any row."""
        self.is_over = False
        """Whether all rows have come: ranks without any are not waited for."""

    def add_rank(self, rank: int) -> None:
        """Adds a column for a rank, with nan for the past."""
        self.ranks.append(rank)
        self._pending[rank] = []
        self.rows = _widened(self.rows)
        self.blocks.values = _widened(self.blocks.values)

    def add(self, rank: int, columns: Columns) -> None:
        """Takes new rows of a rank; `advance` moves them into `rows`."""
        if len(columns["first_step"]):
            self._pending[rank].append(columns)
            ends = columns["first_step"] + columns["num_steps"]
            self._last[rank], self._recent[rank] = int(ends[-1]), self._newest(rank, ends, columns["span_ns"])
            first = int(columns["first_step"][0])
            self._start = first if self._start is None else min(self._start, first)

    def _newest(self, rank: int, ends: Integers, spans: Integers) -> tuple[Integers, Integers]:
        before, took = self._recent.get(rank, (ends[:0], spans[:0]))
        ends, took = np.append(before, ends), np.append(took, np.cumsum(spans) + (took[-1] if len(took) else 0))
        place = min(int(np.searchsorted(took, took[-1] - LAGGING_NS, side="right")), len(took) - LAGGING_ROWS) - 1
        return ends[max(place, 0):], took[max(place, 0):]

    def _is_long_ago(self, rank: int) -> bool:
        """Returns whether the first of a rank's recent rows ended at least `LAGGING_NS` and `LAGGING_ROWS` ago."""
        _, took = self._recent[rank]
        return len(took) > LAGGING_ROWS and took[-1] - took[0] >= LAGGING_NS

    def frontier(self) -> int:
        """Returns the first step that not all ranks have finished; ranks that lag too far behind do not count."""
        if self._start is None:
            return 0
        passed = max((int(ends[0]) for rank, (ends, _) in self._recent.items() if self._is_long_ago(rank)), default=-1)
        lasts = (self._last.get(rank, self._start) for rank in (self._last if self.is_over else self.ranks))
        return min((step for step in lasts if step > passed), default=0)

    def advance(self) -> bool:
        """Appends the rows of all steps before the frontier. Returns whether a block was completed."""
        until = self.frontier()
        lead = next((rank for rank in self.ranks if self._pending[rank] and self._last[rank] >= until), None)
        if lead is None:
            return False
        mine = _joined(self._pending[lead])
        ends = mine["first_step"] + mine["num_steps"]
        size = int(np.searchsorted(ends, until, side="right"))
        bounds = np.stack([mine["first_step"][:size], ends[:size]])
        if not size:
            return False
        values = np.full((size, len(self.ranks), len(FIELDS)), np.nan, np.float32)
        for place, rank in enumerate(self.ranks):
            if self._pending[rank]:
                columns = _joined(self._pending[rank])
                values[:, place] = _means(columns, bounds)
                keep = columns["first_step"] + columns["num_steps"] > bounds[1, -1]
                self._pending[rank] = [{name: column[keep] for name, column in columns.items()}] if keep.any() else []
        self._append(bounds, mine["end_ns"][:size].astype(float), values)
        return self._fill_blocks()

    def _append(self, bounds: Integers, end_ns: Floats, values: Array) -> None:
        self.first = np.append(self.first, bounds[0])
        self.count = np.append(self.count, bounds[1] - bounds[0])
        self.end_ns = np.append(self.end_ns, end_ns)
        self.rows = np.concatenate([self.rows, values])

    def _fill_blocks(self) -> bool:
        size = (len(self.first) - self._blocked) // BLOCK
        if size:
            some = slice(self._blocked, self._blocked + size * BLOCK)
            rows = self.rows[some].reshape(size, BLOCK, *self.rows.shape[1:])
            self.blocks.append(self.first[some][::BLOCK], self.count[some].reshape(size, BLOCK).sum(axis=1),
                               self.end_ns[some][BLOCK - 1::BLOCK], medians(rows).astype(np.float32))
            self._blocked += size * BLOCK
        drop = min(max(len(self.first) - FINE, 0), self._blocked)
        if drop > FINE // 4:
            self.first, self.count, self.end_ns = self.first[drop:], self.count[drop:], self.end_ns[drop:]
            self.rows, self._blocked = self.rows[drop:].copy(), self._blocked - drop
        return bool(size)


class Blocks:
    """Medians of `BLOCK` rows each. Older blocks are joined, in larger groups the older they are."""

    def __init__(self) -> None:
        """Starts without blocks."""
        self.first = np.empty(0, np.int64)
        self.steps = np.empty(0)
        self.end_ns = np.empty(0)
        self.weight = np.empty(0)
        """Number of original blocks in each block; 1 for one that was not joined."""
        self.values = np.empty((0, 0, len(FIELDS)), np.float32)

    def field(self, name: str) -> Floats:
        """Returns one of `FIELDS`; shape (blocks, ranks)."""
        return self.values[:, :, FIELDS.index(name)].astype(float)

    def append(self, first: Integers, steps: Floats, end_ns: Floats, values: Array) -> None:
        """Appends new blocks, and joins old ones if there are more than `MOST`."""
        self.first, self.steps = np.append(self.first, first), np.append(self.steps, steps)
        self.end_ns, self.weight = np.append(self.end_ns, end_ns), np.append(self.weight, np.ones(len(first)))
        self.values = np.concatenate([self.values, values])
        if len(self.first) > MOST:
            self._join()

    def _join(self) -> None:
        """Makes the resolution proportional to age: of n original blocks, about MOST / 8 * log(n) remain."""
        begins = places_of_age(self.weight, MOST // 8)
        total = np.add.reduceat(self.weight, begins)
        share = (self.weight / np.repeat(total, np.diff(np.append(begins, len(self.weight)))))[:, None, None]
        self.values = np.add.reduceat(self.values * share.astype(np.float32), begins, axis=0)
        self.end_ns = self.end_ns[np.append(begins[1:] - 1, len(self.end_ns) - 1)]
        self.first, self.steps, self.weight = self.first[begins], np.add.reduceat(self.steps, begins), total


def places_of_age(weight: Any, fine: int) -> Any:
    """Returns where the groups to be joined begin: the newest `fine` values stay single, and each e-fold of age beyond
    keeps `fine` groups."""
    age = np.cumsum(weight[::-1])[::-1]
    key = np.floor(np.where(age <= fine, age, fine * (1 + np.log(np.maximum(age, fine) / fine))))
    return np.flatnonzero(np.append(True, key[1:] != key[:-1]))


def _widened(values: Array) -> Array:
    return np.concatenate([values, np.full((len(values), 1, len(FIELDS)), np.nan, np.float32)], axis=1)


def _joined(pieces: list[Columns]) -> Columns:
    if len(pieces) > 1:
        pieces[:] = [{name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}]
    return pieces[0]


def _means(columns: Columns, bounds: Integers) -> Floats:
    """Resamples rows to other step ranges, as means per step; the steps of a row are assumed to be alike."""
    first, ends = columns["first_step"], columns["first_step"] + columns["num_steps"]
    same = len(first) >= bounds.shape[1] and np.array_equal(first[:bounds.shape[1]], bounds[0]) and np.array_equal(
        ends[:bounds.shape[1]], bounds[1])
    columns = _on_device(columns)
    found = np.empty((bounds.shape[1], len(FIELDS)))
    edges = np.stack([first, ends], axis=1).ravel()
    steps = columns["num_steps"][:bounds.shape[1]] if same else _between(edges, columns["num_steps"], bounds)
    for place, name in enumerate(SUMS):
        of = columns[name]
        total = of[:bounds.shape[1]] if same else _between(edges, of, bounds)
        found[:, place] = np.where(steps > 0, total / np.maximum(steps, 1e-9), np.nan)
    row = np.minimum(np.searchsorted(ends, bounds[1]), len(ends) - 1)
    for place, name in enumerate(LEVELS, len(SUMS)):
        found[:, place] = np.where(columns[name][row] == UNKNOWN, np.nan, columns[name][row])
    return found


def _on_device(columns: Columns) -> dict[str, Any]:
    """Returns the columns with nan for unknown values. Spans and phases of rows with device times are scaled to these:
    the host may be ahead of the device, by another distance at the end of each row."""
    found: dict[str, Any] = dict(columns)
    for name in SUMS:
        found[name] = np.where(columns[name] == UNKNOWN, np.nan, columns[name].astype(float))
    ratio = found["device_ns"] / np.maximum(found["span_ns"], 1)
    for name in SPANS:
        found[name] *= np.where(ratio > 0, ratio, 1)  # 1 if unknown
    return found


def _between(edges: Integers, of: Array, bounds: Integers) -> Any:
    """Returns the sums over step ranges: the integral is linear within rows and flat in the gaps between them; nan
    where a range includes rows whose value is nan."""
    unknown = np.isnan(of)
    sums = _integrals(edges, np.where(unknown, 0, of), bounds)
    return np.where(_integrals(edges, unknown.astype(float), bounds) > 0, np.nan, sums) if unknown.any() else sums


def _integrals(edges: Integers, of: Array, bounds: Integers) -> Any:
    total = np.cumsum(of)
    integral = np.stack([total - of, total], axis=1).ravel()
    return np.interp(bounds[1], edges, integral) - np.interp(bounds[0], edges, integral)


def medians(rows: Any) -> Any:
    """Returns medians over the second axis, ignoring nan, without numpy's warnings."""
    ordered = np.sort(rows, axis=1)  # nan goes to the end
    known = np.sum(~np.isnan(rows), axis=1)
    low, high = np.maximum((known - 1) // 2, 0)[:, None], np.minimum(known // 2, rows.shape[1] - 1)[:, None]
    found = (np.take_along_axis(ordered, low, 1) + np.take_along_axis(ordered, high, 1))[:, 0] / 2
    return np.where(known > 0, found, np.nan)
