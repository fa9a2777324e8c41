"""The data of `distprof ops --json`; docs/operators.md describes the keys."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.merge.operators.grouping import NUMBERS
from distprof.merge.operators.run_operators import RunOperators
from distprof.merge.operators.sums import KEYS
from distprof.merge.run.run_model import Run


def ops_data(run: Run, found: RunOperators, table: pl.DataFrame) -> dict[str, Any]:
    """What was found.

    Args:
        run: The run.
        found: Its operators, those that were asked for.
        table: `grouped_sums` of these, as far as it is shown.
    """
    chosen = found.sums.groups
    totals = {name: int(chosen[name].sum()) for name in ("calls", "self_host_ns", "self_device_ns")}
    return {
        "format": FORMAT, "kind": "ops", "ranks": list(found.ranks), "world_size": run.world_size,
        "steps": found.sums.steps,
        "coverage": _coverage(found),
        "totals": {**totals, **{name: None if chosen[name].is_null().all() else int(chosen[name].sum())
                                for name in ("flops", "bytes")}},
        "left_out": {"slices_without_duration": found.num_bad, "commands_in_no_step": found.num_stepless,
                     "in_no_step_ns": found.stepless_ns},
        "ops": table.select(pl.col("module_path").alias("module"), pl.col("class_name").alias("class"),
                            *(name for name in (*KEYS, *NUMBERS, "bound") if name not in ("module_path", "class_name"))
                            ).to_dicts()}


def _coverage(found: RunOperators) -> dict[str, Any] | None:
    """Where FLOPs come from, and how far that goes."""
    covered, by_shapes = found.coverage, found.by_shapes
    if by_shapes is not None:
        return {"source": "shapes", "time_ratio": by_shapes.ratio, "unknown_calls": by_shapes.unknown_calls,
                "calls_without_shapes": by_shapes.calls_without_shapes}
    return None if covered is None else {
        "source": "count pass", "flops_ratio": covered.ratio, "flops": covered.flops,
        "counted_flops": covered.counted_flops, "calls": covered.calls, "counted_calls": covered.counted_calls}
