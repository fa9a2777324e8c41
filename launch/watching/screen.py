"""The screen of `distprof watch`: the ranks of a job, which are late and why, and the findings."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distprof.contract.watch_state import RankState, WatchFinding, WatchState
from distprof.merge.text.watch import long_time
from distprof.terminal import visible
from distprof.units import UNKNOWN, duration, percent, size

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

ONCE_ROWS, ONCE_COLUMNS = 10, 120
"""Size of the plain screen: rows for ranks, and characters per line."""
MOST_FINDINGS = 8
"""Most findings that are shown."""
FIXED, LEAST_ROWS = 8, 4
"""Lines that are always used (two about the job, two of the table's head, blank lines, the number of ranks left out),
and the fewest rows for ranks."""


def screen(state: WatchState, title: str, *, columns: int, rows: int) -> Group:
    """Returns the screen of a state.

    Args:
        state: The state of the job.
        title: Where the state comes from.
        columns: Width of the terminal.
        rows: Most ranks that are shown; of more, the worst.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Text | Table] = [Text(visible(line), style) for line, style in _head(state, title)]
    shown = worst_first(state)[:rows] if len(state.ranks) > rows else state.ranks
    parts += [Text(), rank_table(state, shown, columns)]
    if len(state.ranks) > len(shown):
        parts.append(Text(f"and {len(state.ranks) - len(shown):,} more", "dim"))
    parts.append(Text())
    parts += _findings(state)
    parts += [Text(f"note: {visible(note)}", "dim") for note in state.notes]
    return Group(*parts)


def rows_left(state: WatchState, lines: int) -> int:
    """Returns how many ranks fit on a screen with this many lines, at least `LEAST_ROWS`."""
    told = sum(1 + len(one.why) for one in state.findings[:MOST_FINDINGS]) or 1
    return max(lines - FIXED - told - len(state.notes), LEAST_ROWS)


def plain_screen(state: WatchState, title: str, *, columns: int = ONCE_COLUMNS, rows: int = ONCE_ROWS) -> str:
    """Returns the screen as text without colours."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=columns, color_system=None, force_terminal=False, highlight=False)
    console.print(screen(state, title, columns=columns, rows=rows), soft_wrap=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _head(state: WatchState, title: str) -> list[tuple[str, str]]:
    hosts = {one.host for one in state.ranks}
    ranks = number_of(state.world_size, "rank") + (f" on {len(hosts)} hosts" if len(hosts) > 1 else "")
    missing = state.world_size - len(state.ranks)
    steps = number_of(state.num_steps, "step")
    facts = [f"running: {steps}" if state.running else f"over: {steps}", ranks]
    if state.step_ns is not None:
        facts.append(f"{duration(state.step_ns)} per step (median)")
    if state.elapsed_ns is not None:
        facts.append(f"watched for {long_time(state.elapsed_ns)}")
    if missing > 0:
        facts.append(f"{number_of(missing, 'rank')} not seen{' yet' if state.running else ''}")
    return [(title, "bold"), ("; ".join(facts), "")]


def number_of(number: int, noun: str) -> str:
    """Returns a number with a noun: 10000 -> "10,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _findings(state: WatchState) -> list[Text]:
    """Returns the lines of findings: those that go on before those that ended, the newest first."""
    from rich.text import Text

    ordered = sorted(state.findings, key=lambda one: (one.until_step is not None, -one.onset_ns))
    if not ordered:
        return [Text("no findings so far" if state.running else "no findings")]
    lines = []
    for one in ordered[:MOST_FINDINGS]:
        has_ended = one.until_step is not None
        lines.append(Text(f"{_clock(one.onset_ns)}  {visible(one.text)}", "dim" if has_ended else "red"))
        lines += [Text(f"          {visible(why)}", "dim") for why in one.why if why not in one.text]
    if len(ordered) > MOST_FINDINGS:
        lines.append(Text(f"and {len(ordered) - MOST_FINDINGS} more; --json lists them", "dim"))
    return lines


def _clock(time_ns: int) -> str:
    """Returns a time as local time of day, with the date if it is not today."""
    then = time.localtime(time_ns / 1e9)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)


BARS = "▁▂▃▄▅▆▇█"
POINTS, FEW_POINTS = 20, 10
"""Bars of a sparkline if there is room, and if there is little."""
LEAST_SPREAD = 1.25
"""Smallest ratio of the ends of the sparklines' scale, so that noise does not look like a problem."""
GAP = 3
"""Characters between two columns."""
LONGEST_HOST, LONGEST_LATE, LEAST_LATE = 20, 44, 18
"""Characters to which host names and `late by` are cut, and to which `late by` may be narrowed."""
LATE = ("slow_rank", "slow_host", "slow_link", "slow_group", "intermittent", "data_stall", "stopped", "hang")
"""Kinds that make a rank late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column that may be shown."""

    title: str
    expendable: int
    """If there is too little room, the column with the largest number is left out first, those with 0 never."""
    cells: list[str]
    is_words: bool = False
    """Whether cells are text, which is aligned left."""

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))


def rank_table(state: WatchState, shown: Sequence[RankState], columns: int) -> Table:
    """Returns a table with a row for each of these ranks, for a terminal of this width."""
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
    """Returns the columns for which there is room, in their order; the last one may be narrowed."""
    kept = list(every)
    while sum(min(one.width, LEAST_LATE) if one.title == "late by" else one.width for one in kept) \
            + GAP * (len(kept) - 1) > columns and (left := [one for one in kept if one.expendable]):
        kept.remove(max(left, key=lambda one: one.expendable))
    return kept


def _columns(state: WatchState, shown: Sequence[RankState], late: list[str], points: int) -> list[_Column]:
    """Returns all columns in which a value is known."""
    least, most = _scale(shown)

    def of(title: str, expendable: int, cell: Callable[[RankState], str], *, is_words: bool = False) -> _Column:
        return _Column(title=title, expendable=expendable, cells=[cell(one) for one in shown], is_words=is_words)

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
        _Column(title="late by", expendable=0, cells=[text[:LONGEST_LATE] for text in late], is_words=True)]
    one_host = len({one.host for one in state.ranks}) <= 1
    return [one for one in found if not (one.title == "host" and one_host)
            and (not one.expendable or any(cell != UNKNOWN for cell in one.cells))]


def active(state: WatchState) -> list[WatchFinding]:
    """Returns the findings that go on."""
    return [one for one in state.findings if one.until_step is None]


def late_by(state: WatchState, rank: int) -> str:
    """Returns what a rank costs per step according to current findings, and where: `+18.00 ms, forward`."""
    mine = [one for one in active(state) if rank in one.ranks and one.kind in LATE]
    worst = max(mine, key=lambda one: one.per_step_ns or 0.0, default=None)
    if worst is None:
        return ""
    where = worst.module or worst.phase or worst.kind.replace("_", " ")
    return visible(where if worst.per_step_ns is None else f"+{duration(worst.per_step_ns)}, {where}")


def worst_first(state: WatchState) -> list[RankState]:
    """Returns ranks sorted: by the cost of findings that go on, then those in the earliest step, then those that others
    wait for."""
    cost = dict[int, float]()
    for finding in active(state):
        for rank in finding.ranks:
            cost[rank] = max(cost.get(rank, 0.0), 1 + (finding.per_step_ns or 0.0))

    def key(one: RankState) -> tuple[float, int, float, int]:
        waiting = 0.0 if one.waiting_ratio is None else one.waiting_ratio
        return -cost.get(one.rank, 0.0), one.step, -(one.step_ns or 0) * (1 - waiting), one.rank

    return sorted(state.ranks, key=key)


def _scale(ranks: Sequence[RankState]) -> tuple[float, float]:
    """Returns the ends of the scale of the sparklines, which is the same for all ranks, so that they can be
    compared."""
    every = [value for one in ranks for value in one.recent_ns]
    least = min(every, default=0.0)
    return least, max(max(every, default=0.0), least * LEAST_SPREAD)


def sparkline(values: Sequence[float], least: float, most: float, points: int) -> str:
    """Returns values as at most `points` bars of 8 heights, each for the largest of an equal number of values."""
    if not values:
        return UNKNOWN
    count = min(points, len(values))
    parts = [values[len(values) * part // count:len(values) * (part + 1) // count] for part in range(count)]
    span = most - least
    heights = [int((max(part) - least) / span * len(BARS)) if span > 0 else 0 for part in parts]
    return "".join(BARS[min(max(height, 0), len(BARS) - 1)] for height in heights)
