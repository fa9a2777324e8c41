"""One screen about a job: its ranks, what is late and why, and what was noticed."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.contract.watch_state import RankState, WatchFinding, WatchState
from distprof.launch.watching.job_lines import elapsed
from distprof.terminal import visible
from distprof.units import UNKNOWN, counted, duration, percent, size

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
LEAST_SPREAD = 1.25
"""Of the scale of sparklines, so that noise does not look like mountains."""
ONCE_ROWS, ONCE_COLUMNS = 10, 120
WIDE, WIDER = 92, 116
"""Columns from which there is room for more of them."""
MOST_FINDINGS = 8
FIXED, LEAST_ROWS = 8, 4
"""Lines that are always there: two about the job, two of the table's head, blank ones, how many more there are."""
LATE = ("slow_rank", "slow_host", "slow_link", "slow_group", "intermittent", "data_stall", "stopped", "hang")
"""Kinds that make a rank late."""


def screen(state: WatchState, title: str, *, columns: int, rows: int) -> Group:
    """The screen.

    Args:
        state: Of the job.
        title: Where it comes from.
        columns: Of the terminal.
        rows: For ranks; where there are more, the worst are shown.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Text | Table] = [Text(visible(line), style) for line, style in _head(state, title)]
    shown = worst_first(state)[:rows] if len(state.ranks) > rows else state.ranks
    parts += [Text(), _table(state, shown, columns)]
    if len(state.ranks) > len(shown):
        parts.append(Text(f"and {len(state.ranks) - len(shown):,} more", "dim"))
    parts.append(Text())
    parts += _findings(state)
    parts += [Text(f"note: {visible(note)}", "dim") for note in state.notes]
    return Group(*parts)


def rows_left(state: WatchState, lines: int) -> int:
    """How many ranks fit on a screen of so many lines, at least a few."""
    told = sum(1 + len(one.why) for one in state.findings[:MOST_FINDINGS]) or 1
    return max(lines - FIXED - told - len(state.notes), LEAST_ROWS)


def plain_screen(state: WatchState, title: str, *, columns: int = ONCE_COLUMNS, rows: int = ONCE_ROWS) -> str:
    """The same as text without colours."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=columns, color_system=None, force_terminal=False, highlight=False)
    console.print(screen(state, title, columns=columns, rows=rows), soft_wrap=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _head(state: WatchState, title: str) -> list[tuple[str, str]]:
    hosts = {one.host for one in state.ranks}
    ranks = counted(state.world_size, "rank") + (f" on {len(hosts)} hosts" if len(hosts) > 1 else "")
    missing = state.world_size - len(state.ranks)
    facts = [f"{'running' if state.running else 'over'}: {counted_steps(state.num_steps)}", ranks]
    if state.step_ns is not None:
        facts.append(f"{duration(state.step_ns)} per step (median)")
    if state.elapsed_ns is not None:
        facts.append(f"watched for {elapsed(state.elapsed_ns)}")
    if missing > 0:
        facts.append(f"{counted(missing, 'rank')} not seen yet" if state.running else f"{missing} never seen")
    return [(title, "bold"), ("; ".join(facts), "")]


def counted_steps(number: int) -> str:
    """10000 -> "10,000 steps"."""
    return f"{number:,} step{'' if number == 1 else 's'}"


def worst_first(state: WatchState) -> list[RankState]:
    """Ranks with findings that go on, what costs most first; then those that others wait for."""
    cost = dict[int, float]()
    for finding in _active(state):
        for rank in finding.ranks:
            cost[rank] = max(cost.get(rank, 0.0), 1 + (finding.per_step_ns or 0.0))
    most = max((one.step for one in state.ranks), default=0)

    def key(one: RankState) -> tuple[float, int, float, int]:
        waiting = 0.0 if one.waiting_ratio is None else one.waiting_ratio
        return -cost.get(one.rank, 0.0), one.step - most, -(one.step_ns or 0) * (1 - waiting), one.rank

    return sorted(state.ranks, key=key)


def _active(state: WatchState) -> list[WatchFinding]:
    return [one for one in state.findings if one.until_step is None]


def _table(state: WatchState, shown: Sequence[RankState], columns: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    many_hosts = len({one.host for one in state.ranks}) > 1
    on_device = any(one.device_bytes is not None for one in state.ranks)
    points = 20 if columns >= WIDER else 12
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("rank", justify="right", no_wrap=True)
    if many_hosts:
        table.add_column("host", no_wrap=True, max_width=16)
    names = ["step", "step time", *(("data", "forward", "backward") if columns >= WIDER else ()), "waiting", "memory",
             *(("device",) if on_device and columns >= WIDE else ())]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last minute", no_wrap=True)
    table.add_column("late by", no_wrap=True)
    scale = _scale(shown)
    for one in shown:
        late = _late(state, one.rank)
        cells = {"step": f"{one.step:,}", "step time": duration(one.step_ns), "data": duration(one.data_ns),
                 "forward": duration(one.forward_ns), "backward": duration(one.backward_ns),
                 "waiting": percent(one.waiting_ratio), "memory": size(one.host_bytes),
                 "device": size(one.device_bytes)}
        table.add_row(str(one.rank), *([Text(visible(one.host))] if many_hosts else []),
                      *(cells[name] for name in names), sparkline(one.recent_ns, *scale, points), Text(late),
                      style="bold red" if late else "")
    return table


def _late(state: WatchState, rank: int) -> str:
    """What a rank costs each step by what goes on now, and in which part of it."""
    mine = [one for one in _active(state) if rank in one.ranks and one.kind in LATE]
    worst = max(mine, key=lambda one: one.per_step_ns or 0.0, default=None)
    if worst is None:
        return ""
    where = worst.module or worst.phase or worst.kind.replace("_", " ")
    cost = f"+{duration(worst.per_step_ns)}" if worst.per_step_ns is not None else worst.kind.replace("_", " ")
    return visible(f"{cost}, {where}" if where not in cost else cost)


def _scale(ranks: Sequence[RankState]) -> tuple[float, float]:
    """Least and most of the sparklines, which have one scale so that ranks can be compared."""
    every = [value for one in ranks for value in one.recent_ns]
    least = min(every, default=0.0)
    return least, max(max(every, default=0.0), least * LEAST_SPREAD)


def sparkline(values: Sequence[float], least: float, most: float, points: int) -> str:
    """The last values as bars of 8 heights, a column for each of so many parts of equal length: its largest value."""
    parts = [values[len(values) * part // points:max(len(values) * (part + 1) // points, 1)]
             for part in range(points)] if len(values) > points else [[value] for value in values]
    tops = [max(part) for part in parts if part]
    span = most - least
    return "".join(BARS[min(int((top - least) / span * len(BARS)), len(BARS) - 1) if span > 0 else 0]
                   for top in tops) or UNKNOWN


def _findings(state: WatchState) -> list[Text]:
    """Those that go on before those that ended, the newest first."""
    from rich.text import Text

    ordered = sorted(state.findings, key=lambda one: (one.until_step is not None, -one.onset_ns))
    if not ordered:
        return [Text("nothing noticed so far" if state.running else "nothing was noticed")]
    lines = []
    for one in ordered[:MOST_FINDINGS]:
        has_ended = one.until_step is not None
        lines.append(Text(f"{_clock(one.onset_ns)}  {visible(one.text)}", "dim" if has_ended else "red"))
        lines += [Text(f"          {visible(why)}", "dim") for why in one.why if why not in one.text]
    if len(ordered) > MOST_FINDINGS:
        lines.append(Text(f"and {len(ordered) - MOST_FINDINGS} more, which --json lists", "dim"))
    return lines


def _clock(time_ns: int) -> str:
    """When it began, by the clock on the wall here; with the day where that was not today."""
    then = time.localtime(time_ns / 1e9)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)
