"""One screen about a job: its ranks, what is late and why, and what was noticed."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from distprof.contract.watch_state import WatchState
from distprof.launch.watching.rank_table import rank_table, worst_first
from distprof.merge.text.watch import long_time
from distprof.terminal import visible
from distprof.units import duration

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

ONCE_ROWS, ONCE_COLUMNS = 10, 120
MOST_FINDINGS = 8
FIXED, LEAST_ROWS = 8, 4
"""Lines that are always there: two about the job, two of the table's head, blank ones, how many more there are."""


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
    parts += [Text(), rank_table(state, shown, columns)]
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
    """10000 -> "10,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _findings(state: WatchState) -> list[Text]:
    """Those that go on before those that ended, the newest first."""
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
    """When it began, by the clock on the wall here; with the day where that was not today."""
    then = time.localtime(time_ns / 1e9)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)
