"""Counted modules as rows of a table: a count comes in, rows go out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from distprof.reporters.row import Row

if TYPE_CHECKING:
    from distprof.counted import Counts, ModuleCount, OpCount
    from distprof.params import ParamCount

PHASES = {"fwd_flops": "forward", "bwd_flops": "backward", "recompute_flops": "recompute"}


def count_rows(counts: Counts) -> tuple[Row, ...]:
    """One row per module, called or not."""
    held = {path for module in counts.modules if module.calls for path in _holders(module.path)}
    idle = {module.path for module in counts.modules if not module.calls}
    below = _ops_below(counts.ops, idle & held)
    all_flops = counts.flops
    return tuple(_row(module, counts, _work(module) if module.calls else _sums(below.get(module.path, [])),
                      all_flops, idle=module.path in idle - held) for module in counts.modules)


def _row(module: ModuleCount, counts: Counts, work: dict[str, int], all_flops: int, *, idle: bool) -> Row:
    flops = sum(work[key] for key in PHASES)
    return Row(
        path=module.path, class_name=module.class_name,
        marks=tuple(name for name, true in (("shared", module.shared), ("not called", idle and not module.shared),
                                            ("other thread", module.other_thread)) if true),
        values={"input_shapes": module.input_shapes, "output_shapes": module.output_shapes, "calls": module.calls,
                "params": module.params.params, "trainable": trainable(module.params), **work,
                "flops_share": flops / all_flops if all_flops else None,
                "intensity": flops / work["io_bytes"] if work["io_bytes"] else None, **counts.measured(module.path)})


def _holders(path: str) -> Iterator[str]:
    """Paths of the modules that one stands in, innermost first."""
    while path and not path.endswith(":"):
        start, colon, inside = path.rpartition(":")
        path = f"{start}{colon}{inside.rpartition('.')[0]}"
        yield path


def _work(module: ModuleCount) -> dict[str, int]:
    return {"macs": module.macs["forward"], **{key: module.flops[phase] for key, phase in PHASES.items()},
            "elements": module.elements, "io_bytes": module.io_bytes}


def _ops_below(ops: Iterable[OpCount], paths: set[str]) -> dict[str, list[OpCount]]:
    """What the modules inside of each did; for those that are never called themselves, like a ModuleList."""
    found: dict[str, list[OpCount]] = defaultdict(list)
    for op in ops if paths else ():
        for path in {holder for inside in op.within for holder in _holders(inside)} & paths:
            found[path].append(op)
    return found


def _sums(inside: list[OpCount]) -> dict[str, int]:
    return {"macs": sum(op.macs for op in inside if op.phase == "forward"),
            **{key: sum(op.flops for op in inside if op.phase == phase) for key, phase in PHASES.items()},
            "elements": sum(op.elements for op in inside), "io_bytes": sum(op.io_bytes for op in inside)}


def trainable(params: ParamCount) -> str | None:
    """True, False or Partial, as a word; None without parameters."""
    if not params.params:
        return None
    if params.trainable_params == params.params:
        return "True"
    return "Partial" if params.trainable_params else "False"
