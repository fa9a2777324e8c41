"""What counts look like as data: nothing comes in; keys of the JSON object and columns of the tables go out."""

from __future__ import annotations

from distprof.contract.columns import Column, Table, Type

KEYS: dict[str, str] = {
    "format": "1: raised when a key changes its meaning.",
    "params": "Parameters: params (what the model needs on this rank), stored_params (what lies there), "
              "trainable_params, unique_params (replicas of other ranks once; null: unknown), param_bytes, buffers, "
              "buffer_bytes, dtypes (element type -> params).",
    "macs": "Multiply-accumulates of contractions: forward, backward, recompute, and all of them.",
    "flops": "FLOPs of contractions, 2 per MAC: forward, backward, recompute, and all of them.",
    "model_flops": "FLOPs without recomputation and without the scores that a fused attention backward repeats.",
    "causal_flops": "FLOPs without what causal attention masks hide.",
    "elements_by_kind": "Kind of operator -> elements that operators of the kind, no contractions, work on.",
    "estimate_flops": "Rough FLOPs of FFTs, factorisations and distances; never part of flops.",
    "read_bytes": "Bytes read, each tensor of a call once.",
    "write_bytes": "Bytes written, likewise.",
    "coverage_ratio": "Share of the bytes moved that operators move whose work is known.",
    "uncounted": "Operators whose work nobody knows: op, calls, io_bytes; most bytes first.",
    "modules": "A row per module, with the columns of MODULES.",
    "ops": "A row per (module, operator, function, shapes, dtype, phase), with the columns of OPS.",
}
"""Keys of `Counts.to_dict()`."""
FORMAT = 1
LISTS = ("input_shapes", "output_shapes", "shapes", "within", "dtypes")
"""Lists and mappings in JSON, their JSON text in tables."""


def _column(name: str, kind: Type, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type=kind, doc=doc, nullable=nullable)


MEASURED = {
    "fwd_time_ns": "Mean time of forward, modules called inside included. Measured columns are null in a count.",
    "fwd_self_time_ns": "The same without modules called inside.",
    "bwd_time_ns": "Mean time of backward, recomputation apart.",
    "bwd_self_time_ns": "The same without modules called inside.",
    "recompute_time_ns": "Mean time of forward work repeated in backward (activation checkpointing).",
    "mfu": "Model FLOPs over what the device could have done in the time at its peak. Null where that is unknown.",
    "achieved_ratio": "Least time by the roofline / measured time; above 1 where bytes came from a cache.",
}
"""Columns of a profile."""

MODULES = Table(
    file="modules.parquet",
    doc="One row per module of the model, in tree order; numbers include submodules.",
    columns=(
        _column("module_path", "string", "Path of the module from its root; the root is ''."),
        _column("class_name", "category", "Class of the module."),
        _column("depth", "int64", "Number of modules above this one."),
        _column("shared", "bool", "True where the same module stands under another path too."),
        _column("calls", "int64", "Forward calls, recomputation apart. 0 for containers like ModuleList, whose work "
                "is that of their rows below."),
        _column("input_shapes", "string", "Shapes of the tensors of the first call, as a JSON list."),
        _column("output_shapes", "string", "Shapes of the tensors that the first call returned, as a JSON list."),
        _column("params", "int64", "Parameters, submodules included, shared ones once."),
        _column("own_params", "int64", "Parameters without those of submodules."),
        _column("stored_params", "int64", "Parameters that lie on this rank, shards as shards."),
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
        _column("elements", "int64", "Elements that operators which are no contraction work on."),
        _column("io_bytes", "int64", "Bytes read and written."),
        *(_column(name, "float64", doc, nullable=True) for name, doc in MEASURED.items()),
    ),
)

OPS = Table(
    file="ops.parquet",
    doc="One row per (module, operator, function, input shapes, element type, phase).",
    columns=(
        _column("module_path", "category", "Innermost module that ran the operator. Null: outside of every module.",
                nullable=True),
        _column("within", "string", "All modules that were running, as a JSON list."),
        _column("op", "category", "Operator, like aten::mm."),
        _column("phase", "category", "forward, backward or recompute."),
        _column("shapes", "string", "Shapes of the tensor inputs, as a JSON list."),
        _column("dtype", "category", "Element type of the first tensor input, like float32.", nullable=True),
        _column("function", "category", "The torch function that called the operator; null in backward.",
                nullable=True),
        _column("kind", "category", "contraction, norm, activation, pool, softmax, loss, elementwise, ..., other."),
        _column("counted", "bool", "False where nobody knows what the operator does."),
        _column("calls", "int64", "Number of calls."),
        _column("macs", "int64", "Multiply-accumulates of contractions."),
        _column("flops", "int64", "FLOPs, 2 per MAC."),
        _column("causal_macs", "int64", "`macs` without what a causal attention mask hides."),
        _column("recompute_macs", "int64", "Part of `macs`: scores that a fused attention backward repeats."),
        _column("elements", "int64", "Elements an operator that is no contraction works on."),
        _column("estimate_flops", "int64", "Rough FLOPs of FFTs, factorisations and distances; not part of flops."),
        _column("read_bytes", "int64", "Bytes read."),
        _column("write_bytes", "int64", "Bytes written."),
        _column("io_bytes", "int64", "Bytes read and written."),
        _column("note", "category", "What the count is based on, where shapes do not tell.", nullable=True),
    ),
)
