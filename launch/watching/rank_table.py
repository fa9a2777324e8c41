"""The ranks of a job as a table that fits its terminal: columns that matter least are left out, no number is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distprof.contract.watch_state import RankState, WatchFinding, WatchState
from distprof.terminal import visible
from distprof.units import UNKNOWN, duration, percent, size

if TYPE_CHECKING:
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
POINTS, FEW_POINTS = 20, 10
"""Bars of a sparkline where there is room, and where there is little."""
LEAST_SPREAD = 1.25
"""Of the scale of sparklines, so that noise does not look like mountains."""
GAP = 3
LONGEST_HOST, LONGEST_LATE, LEAST_LATE = 20, 44, 18
LATE = ("slow_rank", "slow_host", "slow_link", "slow_group", "intermittent", "data_stall", "stopped", "hang")
"""Kinds that make a rank late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """What may be shown of ranks."""

    title: str
    importance: int
    """Columns of the least are left out first; those of 0 never."""
    cells: list[str]
    is_words: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))


def rank_table(state: WatchState, shown: Sequence[RankState], columns: int) -> Table:
    """A row for each of these ranks, in a terminal of so many columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    late = [late_by(state, one.rank) for one in shown]
    points = POINTS
    kept = _fitting(_columns(state, shown, late, points), columns)
    if "memory" not in [one.title for one in kept]:
        points = FEW_POINTS
        kept = _fitting(_columns(state, shown, late, points), columns)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for one in kept:
        table.add_column(one.title, justify="left" if one.is_words else "right", no_wrap=True,
                         min_width=None if one.title == "late by" else one.width)
    for row, is_late in enumerate(late):
        table.add_row(*(Text(one.cells[row]) for one in kept), style="bold red" if is_late else "")
    return table


def _fitting(every: list[_Column], columns: int) -> list[_Column]:
    """Those for which there is room, in their order; the last one may be cut."""
    kept = list(every)
    while sum(min(one.width, LEAST_LATE) if one.title == "late by" else one.width for one in kept) \
            + GAP * (len(kept) - 1) > columns and (left := [one for one in kept if one.importance]):
        kept.remove(max(left, key=lambda one: one.importance))
    return kept


def _columns(state: WatchState, shown: Sequence[RankState], late: list[str], points: int) -> list[_Column]:
    """All of which something is known."""
    least, most = _scale(shown)

    def of(title: str, importance: int, cell: Callable[[RankState], str], *, is_words: bool = False) -> _Column:
        return _Column(title=title, importance=importance, cells=[cell(one) for one in shown], is_words=is_words)

    found = [
        of("rank", 0, lambda one: str(one.rank)),
        of("host", 4, lambda one: visible(one.host)[:LONGEST_HOST], is_words=True),
        of("step", 5, lambda one: f"{one.step:,}"),
        of("step time", 0, lambda one: duration(one.step_ns)),
        of("data", 9, lambda one: duration(one.data_ns)),
        of("forward", 7, lambda one: duration(one.forward_ns)),
        of("backward", 8, lambda one: duration(one.backward_ns)),
        of("waiting", 1, lambda one: percent(one.waiting_ratio)),
        of("memory", 3, lambda one: size(one.host_bytes)),
        of("device", 6, lambda one: size(one.device_bytes)),
        of("last minute", 2, lambda one: sparkline(one.recent_ns, least, most, points), is_words=True),
        _Column(title="late by", importance=0, cells=[text[:LONGEST_LATE] for text in late], is_words=True)]
    one_host = len({one.host for one in state.ranks}) <= 1
    return [one for one in found if not (one.title == "host" and one_host)
            and (not one.importance or any(cell != UNKNOWN for cell in one.cells))]


def active(state: WatchState) -> list[WatchFinding]:
    """Findings that go on."""
    return [one for one in state.findings if one.until_step is None]


def late_by(state: WatchState, rank: int) -> str:
    """What a rank costs each step by what goes on now, and in which part of it: `+18.00 ms, forward`."""
    mine = [one for one in active(state) if rank in one.ranks and one.kind in LATE]
    worst = max(mine, key=lambda one: one.per_step_ns or 0.0, default=None)
    if worst is None:
        return ""
    where = worst.module or worst.phase or worst.kind.replace("_", " ")
    return visible(where if worst.per_step_ns is None else f"+{duration(worst.per_step_ns)}, {where}")


def worst_first(state: WatchState) -> list[RankState]:
    """Ranks with findings that go on, what costs most first; then those behind; then those that others wait for."""
    cost = dict[int, float]()
    for finding in active(state):
        for rank in finding.ranks:
            cost[rank] = max(cost.get(rank, 0.0), 1 + (finding.per_step_ns or 0.0))

    def key(one: RankState) -> tuple[float, int, float, int]:
        waiting = 0.0 if one.waiting_ratio is None else one.waiting_ratio
        return -cost.get(one.rank, 0.0), one.step, -(one.step_ns or 0) * (1 - waiting), one.rank

    return sorted(state.ranks, key=key)


def _scale(ranks: Sequence[RankState]) -> tuple[float, float]:
    """Least and most of the sparklines, which have one scale so that ranks can be compared."""
    every = [value for one in ranks for value in one.recent_ns]
    least = min(every, default=0.0)
    return least, max(max(every, default=0.0), least * LEAST_SPREAD)


def sparkline(values: Sequence[float], least: float, most: float, points: int) -> str:
    """The last values as bars of 8 heights, a column for each of so many parts of equal length: its largest value."""
    if not values:
        return UNKNOWN
    count = min(points, len(values))
    parts = [values[len(values) * part // count:len(values) * (part + 1) // count] for part in range(count)]
    span = most - least
    heights = [int((max(part) - least) / span * len(BARS)) if span > 0 else 0 for part in parts]
    return "".join(BARS[min(max(height, 0), len(BARS) - 1)] for height in heights)
