"""Counts as JSON types and as tables, with documentation of keys and columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distprof.contract.parquet import schema_of, write_table
from distprof.contract.tables import PHASES, Column, Table, int64, real, text
from distprof.errors import OutputError

if TYPE_CHECKING:
    import polars as pl

    from distprof.counting.counted_call import CountedCall, ModuleCount



COUNT_KEYS: dict[str, str] = {
    "format": "1; increases when the meaning of a key changes.",
    "params": "Parameters: params (what the model needs on this rank), stored_params (stored there), "
              "trainable_params, unique_params (replicas on other ranks counted once; null: unknown), param_bytes, "
              "buffers, buffer_bytes, dtypes (element type -> params).",
    "macs": "Multiply-accumulates of contractions: forward, backward, recompute and total.",
    "flops": "FLOPs of contractions, 2 per MAC: forward, backward, recompute and total.",
    "model_flops": "FLOPs excluding recomputation and the scores that a fused attention backward recomputes.",
    "causal_flops": "FLOPs excluding what causal attention masks hide.",
    "elements_by_kind": "Kind of operator (other than contractions) -> elements that its operators process.",
    "estimate_flops": "Rough FLOPs of FFTs, factorisations and distances; never part of flops.",
    "read_bytes": "Bytes read, each tensor once per call.",
    "write_bytes": "Bytes written, each tensor once per call.",
    "coverage_ratio": "Fraction of all bytes moved that counted operators move.",
    "uncounted": "Operators with neither a formula nor a kind: op, calls, io_bytes; most bytes first.",
    "modules": "One row per module, with the columns of COUNT_MODULES.",
    "ops": "One row per (module, operator, function, shapes, dtype, phase), with the columns of COUNT_OPS.",
}
"""Keys of `Counts.to_dict()`."""
COUNT_FORMAT = 1
JSON_COLUMNS = ("input_shapes", "output_shapes", "shapes", "within", "dtypes")
"""Columns that are lists or mappings in JSON and JSON text in tables."""

MEASURED_COLUMNS = {
    "fwd_time_ns": "Mean forward time, including submodules. Measured columns are null in a count.",
    "fwd_self_time_ns": "The same, excluding submodules.",
    "bwd_time_ns": "Mean backward time, excluding recomputation.",
    "bwd_self_time_ns": "The same, excluding submodules.",
    "recompute_time_ns": "Mean time of forward work repeated during backward (activation checkpointing).",
    "mfu": "Model FLOPs / (time x peak FLOP/s). Null if the peak is unknown.",
    "achieved_ratio": "Minimum time by the roofline / measured time; above 1 if bytes came from a cache.",
}
"""Columns of a profile."""

COUNT_MODULES = Table(
    file="modules.parquet",
    doc="One row per module of the model, in tree order. Numbers include submodules.",
    columns=(
        Column(name="module_path", type="string", doc="Path of the module from the root; the root itself is ''."),
        text("class_name", "Class of the module."),
        int64("depth", "Depth: number of modules above this one."),
        Column(name="shared", type="bool", doc="True if the module has more than one path."),
        int64("calls", "Forward calls, excluding recomputation. 0 for containers like ModuleList, whose children do "
                       "the work."),
        Column(name="input_shapes", type="string", doc="Shapes of the input tensors of the first call, as a JSON "
                                                       "list."),
        Column(name="output_shapes", type="string",
               doc="Shapes of the tensors that the first call returned, as a JSON list."),
        int64("params", "Parameters, including submodules; shared ones count once."),
        int64("own_params", "Parameters, excluding submodules."),
        int64("stored_params", "Parameters stored on this rank; for a sharded one, its shard."),
        int64("trainable_params", "Those of `params` with requires_grad."),
        int64("param_bytes", "Bytes of `stored_params`."),
        int64("buffers", "Elements of buffers."),
        int64("buffer_bytes", "Bytes of `buffers`."),
        Column(name="dtypes", type="string", doc="Element type -> `params` of it, as a JSON object."),
        int64("fwd_macs", "Multiply-accumulates of forward."),
        int64("bwd_macs", "Multiply-accumulates of backward."),
        int64("fwd_flops", "FLOPs of forward, 2 per MAC."),
        int64("bwd_flops", "FLOPs of backward."),
        int64("recompute_flops", "FLOPs of forward calls repeated during backward (activation checkpointing)."),
        int64("elements", "Elements that operators other than contractions process."),
        int64("io_bytes", "Bytes read and written."),
        *(real(name, doc, nullable=True) for name, doc in MEASURED_COLUMNS.items()),
    ),
)

COUNT_OPS = Table(
    file="ops.parquet",
    doc="One row per (module, operator, function, input shapes, element type, phase).",
    columns=(
        text("module_path", "Innermost module that ran the operator. Null: outside all modules.", nullable=True),
        Column(name="within", type="string", doc="All modules that were active, as a JSON list."),
        text("op", "Operator, like aten::mm."),
        text("phase", "forward, backward or recompute."),
        Column(name="shapes", type="string", doc="Shapes of the tensor inputs, as a JSON list."),
        text("dtype", "Element type of the first tensor input, like float32.", nullable=True),
        text("function", "Torch function that called the operator; null in backward.", nullable=True),
        text("kind", "contraction, norm, activation, pool, softmax, loss, elementwise, ..., other."),
        Column(name="counted", type="bool", doc="False if the operator has neither a formula nor a kind."),
        int64("calls", "Number of calls."),
        int64("macs", "Multiply-accumulates of contractions."),
        int64("flops", "FLOPs, 2 per MAC."),
        int64("causal_macs", "`macs` excluding what a causal attention mask hides."),
        int64("recompute_macs", "Part of `macs`: scores that a fused attention backward recomputes."),
        int64("elements", "Elements processed, for operators other than contractions."),
        int64("estimate_flops", "Rough FLOPs of FFTs, factorisations and distances; not part of flops."),
        int64("read_bytes", "Bytes read."),
        int64("write_bytes", "Bytes written."),
        int64("io_bytes", "Bytes read and written."),
        text("note", "What the count is based on, besides shapes.", nullable=True),
    ),
)


def count_dict(counts: CountedCall) -> dict[str, Any]:
    """Returns totals, uncounted operators, modules and operators as plain JSON types."""
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
    """Returns a row of `COUNT_MODULES`."""
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


class Frames(NamedTuple):
    """A data frame for each table."""

    modules: pl.DataFrame
    ops: pl.DataFrame


def count_frames(counts: CountedCall) -> Frames:
    """Returns the data frames of modules and operators."""
    import polars as pl
    import pyarrow as pa

    return Frames(*(pl.DataFrame(pa.Table.from_pylist(rows, schema=schema_of(table, {})))
                    for table, rows in _tables(count_dict(counts))))


def write_counts(counts: CountedCall, folder: Path) -> None:
    """Writes both tables, each atomically; `distprof.totals` in their metadata has the totals as JSON."""
    found = count_dict(counts)
    tables = list(_tables(found))
    metadata = {"distprof.totals": json.dumps(found)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table, rows in tables:
            write_table(folder, table, rows, tags={}, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error


def _tables(found: dict[str, Any]) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    """Removes the rows of both tables from the result of `count_dict` and yields them; lists and mappings become JSON
    text."""
    for table, key in ((COUNT_MODULES, "modules"), (COUNT_OPS, "ops")):
        yield table, [{name: json.dumps(value) if name in JSON_COLUMNS else value for name, value in row.items()}
                      for row in found.pop(key)]
