"""`distprof comms` as text: matched collectives come in, a table and a timeline with a row per rank go out."""

from __future__ import annotations

import shlex
from typing import Any

import polars as pl

from distprof.merge.description import problems_of
from distprof.merge.page import Page
from distprof.merge.run import Run
from distprof.units import duration, size

LETTERS = {"all_reduce": "A", "all_gather": "G", "reduce_scatter": "R", "broadcast": "B", "all_to_all": "T",
           "barrier": "|", "send": "s", "recv": "r", "reduce": "e", "gather": "g", "scatter": "c"}
IDLE = "."


def by_collective(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """One mapping per collective: what it was, who was in it, arrival spread, time on the ranks."""
    held = pl.col("end_ns") - pl.col("arrival_ns")
    frame = rows.group_by("collective", maintain_order=True).agg(
        pl.col("step", "op", "group", "group_description", "group_ranks", "sequence", "dtype", "module_path",
               "phase", "complete", "arrival_spread_ns", "peer").first(),
        pl.col("size_bytes").max(), pl.col("num_ranks").first(), pl.col("arrival_ns").min(),
        pl.col("end_ns").max(), pl.col("late_rank").first().alias("last_rank"),
        held.min().alias("shortest_ns"), held.max().alias("longest_ns"), pl.col("rank").alias("ranks"),
    )
    return frame.to_dicts()


def as_json(rows: pl.DataFrame, run: Run) -> dict[str, Any]:
    """What `--json` prints."""
    return {"world_size": run.world_size, "missing_ranks": run.missing, "problems": problems_of(run),
            "collectives": by_collective(rows)}


def render(rows: pl.DataFrame, run: Run, page: Page, *, limit: int) -> str:
    """A table of the collectives and a timeline per step."""
    collectives = by_collective(rows)
    if not collectives:
        page.line("no collective was recorded in the trace pass")
    else:
        _table(collectives, page, limit)
        for step in sorted({collective["step"] for collective in collectives}):
            _timeline(rows.filter(pl.col("step") == step), step, run, page)
        _late(collectives, page)
        _unsure(collectives, run, page)
    for problem in problems_of(run):
        page.line(f"incomplete: {problem}", style="yellow")
    page.line()
    page.line(f"Next: distprof merge {shlex.quote(str(run.path))}" if not (run.path / "merged").exists() else
              f"Next: open {run.path / 'merged' / 'trace.json.gz'} in https://ui.perfetto.dev")
    return page.text()


def _table(collectives: list[dict[str, Any]], page: Page, limit: int) -> None:
    page.table(
        ("step", "op", "group", "#", "ranks", "bytes", "dtype", "arrival spread", "shortest", "longest", "last rank",
         "issued in"),
        [_row(collective) for collective in collectives[:limit]], left=3)
    if len(collectives) > limit:
        page.line(f"... {len(collectives) - limit} more of {len(collectives)}: --limit {len(collectives)}")
    page.line("time: from the call on a rank until the op had completed there, waiting included")


def _row(collective: dict[str, Any]) -> tuple[str, ...]:
    alone = collective["op"] in ("send", "recv")
    ranks = f"{collective['ranks'][0]} - {collective['peer']}" if alone else (
        f"{collective['num_ranks']}/{len(collective['group_ranks'])}")
    where = collective["module_path"]
    return (
        str(collective["step"]), collective["op"], f"{collective['group_description']} {collective['group']}",
        str(collective["sequence"]), ranks, size(collective["size_bytes"]), collective["dtype"] or "-",
        duration(collective["arrival_spread_ns"]), duration(collective["shortest_ns"]),
        duration(collective["longest_ns"]), "-" if collective["last_rank"] is None else str(collective["last_rank"]),
        (collective["phase"] or "-") + ("" if where is None else f" of {where or '(root)'}"),
    )


def _timeline(rows: pl.DataFrame, step: int, run: Run, page: Page) -> None:
    start, end = rows["arrival_ns"].min(), rows.select(pl.max_horizontal("arrival_ns", "end_ns")).max().item()
    labels = {rank.number: f"rank {rank.number} {rank.place}" for rank in run.ranks}
    left = max(map(len, labels.values())) + 2
    width = max(page.width - left, 20)
    used = sorted(set(rows["op"]))
    page.line()
    page.line(f"step {step}, {duration(end - start)} from the first arrival to the last completion; "
              + ", ".join(f"{LETTERS.get(op, '?')} {op}" for op in used))
    for rank, label in labels.items():
        page.line(f"{label:<{left}}{_bar(rows.filter(pl.col('rank') == rank), start, end, width)}")


def _bar(rows: pl.DataFrame, start: Any, end: Any, width: int) -> str:
    """Time from left to right; a letter where the rank is inside a collective."""
    cells = [IDLE] * width
    scale = width / max(end - start, 1)
    for op, begin, finish in rows.select("op", "arrival_ns", "end_ns").iter_rows():
        first = min(int((begin - start) * scale), width - 1)
        last = first if finish is None else min(int((finish - start) * scale), width - 1)
        cells[first:last + 1] = LETTERS.get(op, "?") * (last + 1 - first)
    return "".join(cells)


def _late(collectives: list[dict[str, Any]], page: Page) -> None:
    together = [one for one in collectives if one["arrival_spread_ns"] is not None]
    if together:
        counts = pl.Series([one["last_rank"] for one in together]).value_counts().sort("count", descending=True)
        rank, count = counts.row(0)
        page.line()
        page.line(f"rank {rank} came last most often: into {count} of {len(together)} collectives")
    broken = [one for one in collectives if not one["complete"]]
    if broken:
        page.line(f"{len(broken)} of {len(collectives)} collectives were not seen on all ranks of their group")


def _unsure(collectives: list[dict[str, Any]], run: Run, page: Page) -> None:
    """What is smaller than the clocks are good for."""
    unsure_ns = run.clock.pair_uncertainty_ns
    spreads = [one["arrival_spread_ns"] for one in collectives if one["arrival_spread_ns"] is not None]
    small = sum(spread <= unsure_ns for spread in spreads)
    if unsure_ns and small:
        page.line(f"clocks of two ranks agree within {duration(unsure_ns)}: {small} of {len(spreads)} arrival spreads "
                  "are smaller, and who came last there is not known")
