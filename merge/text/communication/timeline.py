"""Draws `distprof comms --timeline`: each step on one time axis, each collective on its own.

A rank is a row of characters below a time ruler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

import polars as pl

from distprof.contract.collective_ops import ROWS
from distprof.merge.clock.model import Clock
from distprof.merge.cost.choice import group_label
from distprof.merge.cost.collective_sums import per_collective
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.run.run_model import Run
from distprof.merge.text.phrases import known_to, some
from distprof.reporters.page import Page
from distprof.units import duration, size

EACH = 10
"""If a step has at most this many collectives, each of them is drawn as well."""
MOST_RANKS = 32
"""Maximum number of ranks with a row."""
NARROWEST = 20
LETTERS = {op.name: op.letter for op in ROWS}
OTHER = "#"
"""Letter of ops without a letter of their own."""
IDLE, ARRIVAL, WAITING, INSIDE, NO_END = ".", ">", "~", "=", "?"
MEANING = {
    ARRIVAL: "arrival", WAITING: "waiting for another rank", INSIDE: "in it, waiting or moving",
    NO_END: "end unknown",
}
STYLES = {IDLE: "dim", ARRIVAL: "bold", WAITING: "yellow", INSIDE: "cyan", NO_END: "red"}
"""Letter -> style; other letters are green."""
TICK_COLUMNS = 12
"""Minimum distance of two ticks of a ruler, in characters."""


def draw_timeline(rows: pl.DataFrame, run: Run, clock: Clock, page: Page) -> None:
    """Draws steps in order, and for each its collectives; if there are many, only the step."""
    if rows["arrival_ns"].is_null().all():
        page.line("no timeline: arrival times are unknown")
        return
    hidden = False
    for step in sorted(rows["step"].unique().to_list(), key=lambda one: (one is not None, one)):
        mine = rows.filter(pl.col("step").eq_missing(step))
        _draw_step(mine, step, run, page)
        numbers = mine["collective"].unique().sort().to_list()
        hidden |= len(numbers) > EACH
        if len(numbers) <= EACH:
            for number in numbers:
                _draw_collective(mine.filter(pl.col("collective") == number), run, clock, page)
    if hidden:
        page.line(f"more than {EACH} collectives in a step: narrow them down with --step, --op and --group to draw "
                  "each one")


def _draw_step(rows: pl.DataFrame, step: int | None, run: Run, page: Page) -> None:
    ranks = [rank.number for rank in run.ranks if rank.number in set(rows["rank"])]
    shown, left_out = _shown(rows, ranks)
    labels = _labels(shown, run)
    axis = time_axis(rows, _width(page, labels))
    if axis is None:
        return
    drawn = bars(rows, shown, axis, arrivals=False)
    page.line(f"{'step not known' if step is None else f'step {step}'}: {some(rows['collective'].n_unique())}, "
              f"{duration(axis.end_ns - axis.start_ns)} from the first arrival to the last end"
              + (f"; {left_out}" if left_out else ""))
    _draw(page, axis, [(labels[rank], drawn[rank], "") for rank in shown], rows)


def _draw_collective(rows: pl.DataFrame, run: Run, clock: Clock, page: Page) -> None:
    one = with_lists(per_collective(rows)).row(0, named=True)
    there = rows["rank"].to_list()
    ranks = sorted(set(one["group_ranks"] or ()) | set(there))
    shown, left_out = _shown(rows, ranks)
    labels = _labels(shown, run)
    unsure_ns = clock.pair_uncertainty_ns(there)
    notes = dict(_notes(rows, one, unsure_ns))
    axis = time_axis(rows, _width(page, labels, max(map(len, notes.values()), default=0) + 2))
    if axis is None:
        return
    drawn = bars(rows, [rank for rank in shown if rank in set(there)], axis, arrivals=True)
    page.line(collective_line(one, unsure_ns) + (f"; {left_out}" if left_out else ""))
    if one["mismatch"]:
        page.line(f"mismatch: {one['mismatch']}", style="red")
    lines = [(labels[rank], drawn.get(rank, " " * axis.width), notes.get(rank, "not in it")) for rank in shown]
    _draw(page, axis, lines, rows)


def collective_line(one: dict[str, Any], unsure_ns: int | None) -> str:
    """Returns a collective as one line: `all_reduce #3 of mesh_dp (0-3), ...`."""
    parts = [f"{one['op']} #{one['number']}" if one["number"] is not None else one["op"]]
    parts[0] += f" of {group_label(one['group'], one['group_description'], one['group_ranks'])}"
    if one["phase"] or one["module_path"] is not None:
        parts.append(f"issued in {issued_in(one)}")
    if one["size_bytes"] is not None:
        parts.append(f"{size(one['size_bytes'])} {one['dtype'] or ''}".rstrip())
    if one["arrival_spread_ns"] is not None:
        parts.append(f"arrival spread {known_to(one['arrival_spread_ns'], unsure_ns)}")
    if one["busbw"] is not None:
        parts.append(f"busbw {gigabytes(one['busbw'])} GB/s")
    return ", ".join(parts)


def issued_in(one: dict[str, Any]) -> str:
    """Returns `backward of layers.1`."""
    where = one["module_path"]
    return " of ".join(filter(None, (one["phase"] or ("-" if where is None else ""),
                                     None if where is None else where or "(root)")))


def gigabytes(rate: float | None) -> str:
    """Returns a rate in bytes/s as GB/s (1e9), with three digits."""
    if rate is None:
        return "-"
    value = rate / 1e9
    return f"{value:.2f}" if value >= 0.995 else f"{value:.3g}" if value >= 0.0001 else f"{value:.1e}"


def _notes(rows: pl.DataFrame, one: dict[str, Any], unsure_ns: int | None) -> Iterator[tuple[int, str]]:
    for rank, op, wait, transfer, arrival, end in rows.select(
            "rank", "op", "wait_ns", "transfer_ns", "arrival_ns", "end_ns").iter_rows():
        is_late = rank == one["late_rank"] and not one["unsure"]
        if wait is not None:
            what = "last" if is_late else f"waits {known_to(wait, unsure_ns)}"
            yield rank, f"{what}, moves {known_to(transfer, unsure_ns)}"
        elif end is not None and arrival is not None:
            yield rank, f"{op if op in ('send', 'recv') else 'in it'} {duration(end - arrival)}"
        else:
            yield rank, f"{op if op in ('send', 'recv') else 'arrived'}, end unknown"


def _shown(rows: pl.DataFrame, ranks: Sequence[int]) -> tuple[list[int], str]:
    """Returns the ranks that have a row; of many, the first and the last to arrive."""
    if len(ranks) <= MOST_RANKS:
        return list(ranks), ""
    order = rows.filter(pl.col("rank").is_in(list(ranks))).group_by("rank").agg(
        pl.col("arrival_ns").min()).sort("arrival_ns", "rank")["rank"].to_list()
    half = MOST_RANKS // 2
    return sorted(order[:half] + order[-half:]), f"the {half} ranks that arrived first and last, of {len(ranks)}"


def _labels(ranks: Sequence[int], run: Run) -> dict[int, str]:
    places = {rank.number: rank.place for rank in run.ranks}
    return {rank: f"rank {rank} {places.get(rank, '')}".rstrip() for rank in ranks}


def _width(page: Page, labels: dict[int, str], right: int = 0) -> int:
    return max(page.width - max(map(len, labels.values()), default=0) - 2 - right, NARROWEST)


def _draw(page: Page, axis: Axis, lines: Sequence[tuple[str, str, str]], rows: pl.DataFrame) -> None:
    left = max(len(label) for label, _, _ in lines) + 2
    page.line(" " * left + axis.ruler())
    for label, drawn, note in lines:
        pieces = [("".join(run), STYLES.get(letter, "green")) for letter, run in groupby(drawn)]
        page.marked([(label.ljust(left), None), *pieces, (f"  {note}" if note else "", None)])
    page.line(" " * left + legend(list(dict.fromkeys(rows["op"])), "".join(drawn for _, drawn, _ in lines)))
    page.line()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Maps time to columns, from left to right."""

    start_ns: int
    end_ns: int
    width: int

    @property
    def span_ns(self) -> int:
        """Length of the axis in ns, at least 1."""
        return max(self.end_ns - self.start_ns, 1)

    def cell(self, at_ns: int) -> int:
        """Returns the column of a point in time."""
        return min(max(int((at_ns - self.start_ns) * self.width // self.span_ns), 0), self.width - 1)

    def ruler(self) -> str:
        """Returns ticks with the time since the start: `|0        |5 ms     |10 ms`."""
        least_ns = self.span_ns * TICK_COLUMNS / self.width
        ticks = (factor * 10 ** power for power in count() for factor in (1, 2, 5))
        line = ""
        for at_ns in range(0, self.span_ns, next(tick for tick in ticks if tick >= least_ns)):
            text = f"|{_since(at_ns)}"
            column = at_ns * self.width // self.span_ns
            if column + len(text) <= self.width:
                line = line.ljust(column) + text
        return line


def _since(ns: int) -> str:
    number, _, unit = duration(ns).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}" if ns else "0"


def time_axis(rows: pl.DataFrame, width: int) -> Axis | None:
    """Returns an axis from the first arrival to the last end; None if no arrival is known."""
    start, end = rows["arrival_ns"].min(), rows.select(pl.max_horizontal("arrival_ns", "end_ns").max()).item()
    if not isinstance(start, int):
        return None
    return Axis(start_ns=start, end_ns=max(end, start + 1), width=width)


def bars(rows: pl.DataFrame, ranks: Sequence[int], axis: Axis, *, arrivals: bool) -> dict[int, str]:
    """Returns a row of characters per rank.

    Args:
        rows: `MERGED_COLLECTIVES` of what is drawn.
        ranks: Ranks whose rows are wanted.
        axis: The time axis.
        arrivals: Whether to mark when a rank arrived.
    """
    cells = {rank: [IDLE] * axis.width for rank in ranks}
    known = rows.filter(pl.col("arrival_ns").is_not_null(), pl.col("rank").is_in(list(cells))).sort("arrival_ns")
    moments = known.select("rank", "op", "arrival_ns", "wait_ns", "end_ns").rows()
    # where several overlap, moving is drawn over waiting, and arrivals over both
    for rank, _, arrival, wait, end in moments:
        if wait:
            _paint(cells[rank], axis, arrival, min(arrival + wait, end), WAITING)
    for rank, op, arrival, wait, end in moments:
        if end is None:
            _paint(cells[rank], axis, arrival, arrival, NO_END)
        elif wait is None and arrivals:
            _paint(cells[rank], axis, arrival, end, INSIDE)
        else:
            _paint(cells[rank], axis, arrival + (wait or 0), end, LETTERS.get(op, OTHER))
    if arrivals:
        for rank, _, arrival, _, end in moments:
            if end is not None and axis.cell(end) > axis.cell(arrival):
                _paint(cells[rank], axis, arrival, arrival, ARRIVAL)
    return {rank: "".join(line) for rank, line in cells.items()}


def _paint(cells: list[str], axis: Axis, start_ns: int, end_ns: int, letter: str) -> None:
    first, last = axis.cell(start_ns), axis.cell(end_ns)
    cells[first:last + 1] = letter * (last + 1 - first)


def legend(ops: Sequence[str], drawn: str) -> str:
    """Returns the meaning of the characters that occur."""
    letters: dict[str, list[str]] = {}
    for op in ops:
        letters.setdefault(LETTERS.get(op, OTHER), []).append(op)
    parts = [f"{letter} moving in {', '.join(names)}" for letter, names in letters.items() if letter in drawn]
    return ", ".join([f"{letter} {meaning}" for letter, meaning in MEANING.items() if letter in drawn] + parts)
