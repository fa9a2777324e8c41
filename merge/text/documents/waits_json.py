"""The data of `distprof waits --json`; docs/waits.md describes the keys."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.merge.text.documents.devices_json import devices_data
from distprof.merge.waits.compilations import compilation_totals, grouped_compilations
from distprof.merge.waits.queues import summed_queues
from distprof.merge.waits.run_waits import RunWaits


def waits_data(world_size: int, found: RunWaits, table: pl.DataFrame, lines: pl.DataFrame, top: int | None) -> (
        dict[str, Any]):
    """What was found.

    Args:
        world_size: Ranks of the job.
        found: Waits that were chosen.
        table: `grouped` of them, as far as it is shown.
        lines: `script_lines`.
        top: Rows of compilations; all without.
    """
    rows, steps = found.rows, found.steps
    return {
        "format": FORMAT, "kind": "waits", "source": found.source, "ranks": list(found.ranks), "world_size": world_size,
        "steps": sorted({*steps["step"].to_list(), *rows["step"].to_list()}),
        "totals": {"calls": int(rows["calls"].sum()), "blocked_ns": int(rows["blocked_ns"].sum()),
                   "blocking_calls": int(rows.filter("blocking")["calls"].sum()),
                   "steps_ns": int(steps["duration_ns"].sum()) if len(steps) else None},
        "waits": _named(table), "lines": lines.to_dicts(), "compilations": _compiled(found.compilations, top),
        "queues": None if found.queues is None else summed_queues(found.queues).to_dicts(),
        "devices": devices_data(found.devices)}


def _compiled(rows: pl.DataFrame, top: int | None) -> dict[str, Any]:
    """Totals, and a row for what is alike."""
    table = grouped_compilations(rows)
    return {"totals": compilation_totals(rows), "rows": _named(table.head(top) if top else table)}


def _named(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rename({"module_path": "module"}).to_dicts()
