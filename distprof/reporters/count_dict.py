"""Counts as JSON types; `count_schema` documents the keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distprof.contract.tables import PHASES
from distprof.reporters.count_schema import COUNT_FORMAT, COUNT_OPS, MEASURED_COLUMNS

if TYPE_CHECKING:
    from distprof.counting.counted_call import CountedCall, ModuleCount


def count_dict(counts: CountedCall) -> dict[str, Any]:
    """Totals, uncounted operators, modules and operators."""
    return {
        "format": COUNT_FORMAT,
        "params": {**asdict(counts.params), "dtypes": dict(counts.params.dtypes)},
        "macs": _by_phase(counts, "macs"),
        "flops": _by_phase(counts, "flops"),
        "model_flops": counts.model_flops,
        "causal_flops": counts.causal_flops,
        "elements_by_kind": counts.by_kind("elements"),
        "estimate_flops": counts.total("estimate_flops"),
        "read_bytes": counts.total("read_bytes"),
        "write_bytes": counts.total("write_bytes"),
        "coverage_ratio": counts.coverage_ratio,
        "uncounted": [asdict(one) for one in counts.uncounted],
        "modules": [_module_row(counts, module) for module in counts.modules],
        "ops": [{**{name: getattr(op, name) for name in COUNT_OPS.names()}, "within": sorted(op.within),
                 "shapes": json.loads(op.shapes), "note": op.note or None} for op in counts.ops],
    }


def _by_phase(counts: CountedCall, quantity: str) -> dict[str, int]:
    return {**{phase: counts.total(quantity, phase) for phase in PHASES}, "all": counts.total(quantity)}


def _module_row(counts: CountedCall, module: ModuleCount) -> dict[str, Any]:
    """The columns of `count_schema.COUNT_MODULES`."""
    params, measured = module.params, counts.measured(module.path)
    return {
        "module_path": module.path, "class_name": module.class_name, "depth": module.depth, "shared": module.shared,
        "calls": module.calls, "input_shapes": [list(shape) for shape in module.input_shapes],
        "output_shapes": [list(shape) for shape in module.output_shapes], "params": params.params,
        "own_params": module.own_params, "stored_params": params.stored_params,
        "trainable_params": params.trainable_params, "param_bytes": params.param_bytes, "buffers": params.buffers,
        "buffer_bytes": params.buffer_bytes, "dtypes": dict(params.dtypes), "fwd_macs": module.macs["forward"],
        "bwd_macs": module.macs["backward"], "fwd_flops": module.flops["forward"],
        "bwd_flops": module.flops["backward"], "recompute_flops": module.flops["recompute"],
        "elements": module.elements, "io_bytes": module.io_bytes,
        **{name: measured.get(name) for name in MEASURED_COLUMNS},
    }
