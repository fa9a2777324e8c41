"""Modules, reduced over ranks, as rows of a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from distprof.merge.totals.module_sums import TIMES
from distprof.merge.totals.operator_sums import FLOPS_OF_PHASE
from distprof.merge.totals.totals import as_whole
from distprof.reporters.tree import TreeRow

MEANS = {"macs": "fwd_macs_mean", **{name: f"{name}_mean" for name in (
    "params", *FLOPS_OF_PHASE, *TIMES, "fwd_self_time_ns", "bwd_self_time_ns")}}
"""Column of the tree -> column of the table; tables of some versions lack some."""


def module_rows(modules: pl.DataFrame) -> tuple[TreeRow, ...]:
    """One row per (stage, module path), in the order of the model; stages are groups where there are several."""
    found = [(module, {key: as_whole(module.get(column)) for key, column in MEANS.items()})
             for module in modules.to_dicts()]
    roots: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for module, values in found:
        if not module["module_path"] or module["module_path"].endswith(":"):
            roots[module["stage"]].append(values)
    staged = modules["stage"].n_unique() > 1
    return tuple(_row(module, values, roots[module["stage"]], staged=staged) for module, values in found)


def module_dicts(modules: pl.DataFrame, rows: Iterable[TreeRow],
                 shown: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows of the merged table, those that are shown, in that order."""
    place = {(row.group, row.path): index for index, row in enumerate(rows)}
    return [modules.row(place[key], named=True) for key in shown]


def _row(module: Mapping[str, Any], values: Mapping[str, Any], roots: Iterable[Mapping[str, Any]], *,
         staged: bool) -> TreeRow:
    return TreeRow(
        path=module["module_path"], class_name=module["class_name"],
        group=f"stage {module['stage']}" if staged else "",
        values={**values, "flops_share": _share(values, roots, FLOPS_OF_PHASE),
                "time_share": _share(values, roots, TIMES), "slowest_rank": module["slowest_rank"]})


def _share(values: Mapping[str, Any], roots: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> float | None:
    """Part of what all root modules of the stage have; None where that is unknown."""
    known = [values[key] for key in keys if values[key] is not None]
    total = sum(root[key] or 0 for root in roots for key in keys)
    return sum(known) / total if known and total else None
