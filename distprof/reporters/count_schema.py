"""Documentation of counts as data: keys of the JSON object and columns of the tables."""

from __future__ import annotations

from distprof.contract.columns import Column, Table, Type

COUNT_KEYS: dict[str, str] = {
    "format": "1; increases when a key changes its meaning.",
    "params": "Parameters: params (needed by the model on this rank), stored_params (stored there), "
              "trainable_params, unique_params (replicas of other ranks once; null: unknown), param_bytes, buffers, "
              "buffer_bytes, dtypes (element type -> params).",
    "macs": "Multiply-accumulates of contractions: forward, backward, recompute, and all of them.",
    "flops": "FLOPs of contractions, 2 per MAC: forward, backward, recompute, and all of them.",
    "model_flops": "FLOPs without recomputation and without the scores that a fused attention backward recomputes.",
    "causal_flops": "FLOPs without what causal attention masks hide.",
    "elements_by_kind": "Kind of operator, contractions apart -> elements that its operators process.",
    "estimate_flops": "Rough FLOPs of FFTs, factorisations and distances; never part of flops.",
    "read_bytes": "Bytes read, each tensor of a call once.",
    "write_bytes": "Bytes written, each tensor of a call once.",
    "coverage_ratio": "Share of the moved bytes that counted operators move.",
    "uncounted": "Operators without formula or kind: op, calls, io_bytes; most bytes first.",
    "modules": "A row per module, with the columns of COUNT_MODULES.",
    "ops": "A row per (module, operator, function, shapes, dtype, phase), with the columns of COUNT_OPS.",
}
"""Keys of `Counts.to_dict()`."""
COUNT_FORMAT = 1
JSON_COLUMNS = ("input_shapes", "output_shapes", "shapes", "within", "dtypes")
"""Columns that are lists or mappings in JSON and JSON text in tables."""


def _column(name: str, kind: Type, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type=kind, doc=doc, nullable=nullable)


MEASURED_COLUMNS = {
    "fwd_time_ns": "Mean forward time, submodules included. Measured columns are null in a count.",
    "fwd_self_time_ns": "The same without submodules.",
    "bwd_time_ns": "Mean backward time, recomputation apart.",
    "bwd_self_time_ns": "The same without submodules.",
    "recompute_time_ns": "Mean time of forward work repeated in backward (activation checkpointing).",
    "mfu": "Model FLOPs / (time x peak FLOP/s). Null if the peak is unknown.",
    "achieved_ratio": "Least time by the roofline / measured time; above 1 if bytes came from a cache.",
}
"""Columns of a profile."""

COUNT_MODULES = Table(
    file="modules.parquet",
    doc="One row per module of the model, in tree order; numbers include submodules.",
    columns=(
        _column("module_path", "string", "Path of the module from its root; the root is ''."),
        _column("class_name", "category", "Class of the module."),
        _column("depth", "int64", "Number of modules above this one."),
        _column("shared", "bool", "True if the module has another path too."),
        _column("calls", "int64", "Forward calls, recomputation apart. 0 for containers like ModuleList, whose work "
                "is that of their children."),
        _column("input_shapes", "string", "Shapes of the tensors of the first call, as a JSON list."),
        _column("output_shapes", "string", "Shapes of the tensors that the first call returned, as a JSON list."),
        _column("params", "int64", "Parameters, submodules included, shared ones once."),
        _column("own_params", "int64", "Parameters without those of submodules."),
        _column("stored_params", "int64", "Parameters stored on this rank; of a sharded one its shard."),
        _column("trainable_params", "int64", "Those of `params` with requires_grad."),
        _column("param_bytes", "int64", "Bytes of `stored_params`."),
        _column("buffers", "int64", "Elements of buffers."),
        _column("buffer_bytes", "int64", "Bytes of `buffers`."),
        _column("dtypes", "string", "Element type -> `params` of it, as a JSON object."),
        _column("fwd_macs", "int64", "Multiply-accumulates of forward."),
        _column("bwd_macs", "int64", "Multiply-accumulates of backward."),
        _column("fwd_flops", "int64", "FLOPs of forward, 2 per MAC."),
        _column("bwd_flops", "int64", "FLOPs of backward."),
        _column("recompute_flops", "int64", "FLOPs of forward calls repeated in backward (activation checkpointing)."),
        _column("elements", "int64", "Elements that operators other than contractions process."),
        _column("io_bytes", "int64", "Bytes read and written."),
        *(_column(name, "float64", doc, nullable=True) for name, doc in MEASURED_COLUMNS.items()),
    ),
)

COUNT_OPS = Table(
    file="ops.parquet",
    doc="One row per (module, operator, function, input shapes, element type, phase).",
    columns=(
        _column("module_path", "category", "Innermost module that ran the operator. Null: outside of all modules.",
                nullable=True),
        _column("within", "string", "All modules that were running, as a JSON list."),
        _column("op", "category", "Operator, like aten::mm."),
        _column("phase", "category", "forward, backward or recompute."),
        _column("shapes", "string", "Shapes of the tensor inputs, as a JSON list."),
        _column("dtype", "category", "Element type of the first tensor input, like float32.", nullable=True),
        _column("function", "category", "The torch function that called the operator; null in backward.",
                nullable=True),
        _column("kind", "category", "contraction, norm, activation, pool, softmax, loss, elementwise, ..., other."),
        _column("counted", "bool", "False if the operator has neither formula nor kind."),
        _column("calls", "int64", "Number of calls."),
        _column("macs", "int64", "Multiply-accumulates of contractions."),
        _column("flops", "int64", "FLOPs, 2 per MAC."),
        _column("causal_macs", "int64", "`macs` without what a causal attention mask hides."),
        _column("recompute_macs", "int64", "Part of `macs`: scores that a fused attention backward recomputes."),
        _column("elements", "int64", "Elements that an operator other than a contraction processes."),
        _column("estimate_flops", "int64", "Rough FLOPs of FFTs, factorisations and distances; not part of flops."),
        _column("read_bytes", "int64", "Bytes read."),
        _column("write_bytes", "int64", "Bytes written."),
        _column("io_bytes", "int64", "Bytes read and written."),
        _column("note", "category", "What the count is based on besides shapes.", nullable=True),
    ),
)
