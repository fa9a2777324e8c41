"""Rows of the module tree of `Counts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distprof.reporters.tree import paths_above
from distprof.reporters.tree_row import TreeRow

if TYPE_CHECKING:
    from distprof.contract.rank_json import ParamCount
    from distprof.counting.counts import Counts, ModuleCount

FLOPS_COLUMNS = {"fwd_flops": "forward", "bwd_flops": "backward", "recompute_flops": "recompute"}
"""Column -> phase."""


def count_rows(counts: Counts) -> tuple[TreeRow, ...]:
    """One row per module, called or not."""
    busy = _busy(module.path for module in counts.modules if module.calls)
    total = counts.flops
    return tuple(_row(module, counts.measured(module.path), total, idle=module.path not in busy)
                 for module in counts.modules)


def _busy(called: Iterable[str]) -> set[str]:
    """Modules that were called, and those that contain one."""
    return {above for path in called for above in (path, *paths_above(path))}


def _row(module: ModuleCount, measured: Mapping[str, Any], total: int, *, idle: bool) -> TreeRow:
    work = {"macs": module.macs["forward"], **{key: module.flops[phase] for key, phase in FLOPS_COLUMNS.items()},
            "elements": module.elements, "io_bytes": module.io_bytes}
    flops = sum(work[key] for key in FLOPS_COLUMNS)
    return TreeRow(
        path=module.path, class_name=module.class_name,
        marks=("shared",) if module.shared else ("not called",) if idle else (),
        values={"input_shapes": module.input_shapes, "output_shapes": module.output_shapes, "calls": module.calls,
                "params": module.params.params, "trainable": trainable(module.params), **work,
                "flops_share": flops / total if total else None,
                "intensity": flops / work["io_bytes"] if work["io_bytes"] else None, **measured})


def trainable(params: ParamCount) -> str | None:
    """True, False or Partial, as a word; None without parameters."""
    if not params.params:
        return None
    if params.trainable_params == params.params:
        return "True"
    return "Partial" if params.trainable_params else "False"
