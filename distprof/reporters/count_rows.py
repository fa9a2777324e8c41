"""Counted modules as rows of a table: a count comes in, rows go out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.reporters.row import Row

if TYPE_CHECKING:
    from distprof.counted import Counts, ModuleCount
    from distprof.params import ParamCount

PHASES = {"fwd_flops": "forward", "bwd_flops": "backward", "recompute_flops": "recompute"}


def count_rows(counts: Counts) -> tuple[Row, ...]:
    """One row per module, called or not."""
    called = {module.path for module in counts.modules if module.calls}
    return tuple(_row(module, counts, called) for module in counts.modules)


def _row(module: ModuleCount, counts: Counts, called: set[str]) -> Row:
    below = f"{module.path}." if module.path and not module.path.endswith(":") else module.path
    idle = not module.calls and not any(path.startswith(below) for path in called)
    work = _work(module)
    flops = sum(work[key] for key in PHASES)
    return Row(
        path=module.path, class_name=module.class_name,
        marks=("shared",) if module.shared else ("not called",) if idle else (),
        values={"input_shapes": module.input_shapes, "output_shapes": module.output_shapes, "calls": module.calls,
                "params": module.params.params, "trainable": trainable(module.params), **work,
                "flops_share": flops / counts.flops if counts.flops else None,
                "intensity": flops / work["io_bytes"] if work["io_bytes"] else None, **counts.measured(module.path)})


def _work(module: ModuleCount) -> dict[str, int]:
    return {"macs": module.macs["forward"], **{key: module.flops[phase] for key, phase in PHASES.items()},
            "elements": module.elements, "io_bytes": module.io_bytes}


def trainable(params: ParamCount) -> str | None:
    """True, False or Partial, as a word; None without parameters."""
    if not params.params:
        return None
    if params.trainable_params == params.params:
        return "True"
    return "Partial" if params.trainable_params else "False"
