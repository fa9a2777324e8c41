"""The merged modules table as rows of a tree, in the order of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from distprof.merge.totals.totals import as_whole
from distprof.reporters.tree import TreeRow

MEANS = {
    "params": "params_mean",
    "macs": "fwd_macs_mean",
    "fwd_flops": "fwd_flops_mean",
    "bwd_flops": "bwd_flops_mean",
    "recompute_flops": "recompute_flops_mean",
    "fwd_time_ns": "fwd_time_ns_mean",
    "fwd_self_time_ns": "fwd_self_time_ns_mean",
    "bwd_time_ns": "bwd_time_ns_mean",
    "bwd_self_time_ns": "bwd_self_time_ns_mean",
    "recompute_time_ns": "recompute_time_ns_mean",
}
"""Column of the tree -> column of the table; tables of some versions lack some."""
FLOPS = ("fwd_flops", "bwd_flops", "recompute_flops")
TIMES = ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns")


def module_rows(modules: pl.DataFrame) -> tuple[TreeRow, ...]:
    """One row per (stage, module path); stages are groups where there are several."""
    found = modules.to_dicts()
    staged = len({module["stage"] for module in found}) > 1
    work = {_key(module): _values(module) for module in found}
    roots: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for (stage, path), values in work.items():
        if not path or path.endswith(":"):
            roots[stage].append(values)
    return tuple(_row(module, work[_key(module)], roots[module["stage"]], staged=staged) for module in found)


def module_dicts(modules: pl.DataFrame, rows: Iterable[TreeRow],
                 shown: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows of the merged table, those that are shown, in that order."""
    place = {(row.group, row.path): index for index, row in enumerate(rows)}
    return [modules.row(place[key], named=True) for key in shown]


def _key(module: Mapping[str, Any]) -> tuple[int, str]:
    return module["stage"], module["module_path"]


def _values(module: Mapping[str, Any]) -> dict[str, Any]:
    return {key: as_whole(module.get(column)) for key, column in MEANS.items()}


def _row(module: Mapping[str, Any], values: Mapping[str, Any], roots: Iterable[Mapping[str, Any]], *,
         staged: bool) -> TreeRow:
    return TreeRow(
        path=module["module_path"], class_name=module["class_name"],
        group=f"stage {module['stage']}" if staged else "",
        values={**values, "flops_share": _share(values, roots, FLOPS), "time_share": _share(values, roots, TIMES),
                "slowest_rank": module["slowest_rank"]})


def _share(values: Mapping[str, Any], roots: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> float | None:
    """Part of what all root modules of the stage have; None where that is unknown."""
    known = [values[key] for key in keys if values[key] is not None]
    total = sum(root[key] or 0 for root in roots for key in keys)
    return sum(known) / total if known and total else None
