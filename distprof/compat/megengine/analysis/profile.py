"""Operators of a profile as a table with MegEngine's terms, whichever program wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

SCHEMA = {
    "rank": pl.Int64(), "name": pl.String(), "type": pl.String(), "operator": pl.String(), "id": pl.String(),
    "device_end": pl.Float64(), "device_kern": pl.Float64(), "host_end": pl.Float64(), "host_kern": pl.Float64(),
    "computation": pl.Float64(), "memory": pl.Float64(), "in_shapes": pl.String(), "in_layouts": pl.String(),
    "out_shapes": pl.String(), "dtypes": pl.List(pl.String())}
"""One row per operator and rank. `operator`: torch's name, null in MegEngine's dumps. `device_end` and `host_end`:
seconds from start to end of the operator; `device_kern` and `host_kern`: to the start of its kernel. Shapes and strides
are JSON. Null: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile that was read."""

    rows: pl.DataFrame
    """Columns as in `SCHEMA`."""
    notes: Sequence[str] = ()
    """Sentences about what the numbers mean, and what was left out."""


TYPES = {
    "ConvolutionForward": ("convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution",
                           "miopen_convolution", "thnn_conv2d", "_slow_conv2d_forward", "_conv_depthwise2d"),
    "MatrixMul": ("mm", "addmm", "matmul", "linear", "mkldnn_linear", "_scaled_mm", "addmv", "mv"),
    "BatchedMatrixMul": ("bmm", "baddbmm"),
    "Dot": ("dot", "vdot"),
    "Elemwise": (
        "add", "sub", "mul", "div", "neg", "abs", "exp", "expm1", "log", "log1p", "pow", "sqrt", "rsqrt", "reciprocal",
        "relu", "sigmoid", "tanh", "silu", "gelu", "erf", "sin", "cos", "tan", "floor", "ceil", "round", "maximum",
        "minimum", "clamp", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge", "where", "threshold_backward",
        "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "addcmul", "addcdiv", "lerp", "sign",
        "logical_and", "logical_or", "logical_not"),
    "Reduce": ("sum", "mean", "prod", "amax", "amin", "max", "min", "any", "all", "norm"),
    "PoolingForward": ("max_pool2d_with_indices", "avg_pool2d", "mkldnn_max_pool2d"),
    "PoolingBackward": ("max_pool2d_with_indices_backward", "avg_pool2d_backward"),
    "AdaptivePoolingForward": ("_adaptive_avg_pool2d", "adaptive_max_pool2d"),
    "AdaptivePoolingBackward": ("_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward"),
    "BatchNormForward": ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
                         "_batch_norm_with_update"),
    "BatchNormBackward": ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
    "Copy": ("copy", "_to_copy"),
    "Concat": ("cat",),
    "Reshape": ("view", "_unsafe_view", "reshape"),
    "Dimshuffle": ("permute", "transpose", "t"),
    "SoftmaxForward": ("_softmax",), "SoftmaxBackward": ("_softmax_backward_data",),
    "LayerNormForward": ("native_layer_norm",), "LayerNormBackward": ("native_layer_norm_backward",),
    "GroupNormForward": ("native_group_norm",), "GroupNormBackward": ("native_group_norm_backward",),
    "DropoutForward": ("native_dropout",), "DropoutBackward": ("native_dropout_backward",),
    "Subtensor": ("slice", "select"), "Split": ("split", "split_with_sizes"), "Broadcast": ("expand",),
    "Argmax": ("argmax",), "Argmin": ("argmin",), "ArgsortForward": ("sort", "argsort"), "TopK": ("topk",),
    "Cumsum": ("cumsum",),
}
"""MegEngine's type -> operators of torch, without `aten::` and the trailing `_` of in-place ones. Operators without a
counterpart, such as a backward convolution for data and filter at once, keep torch's name."""
_BY_NAME = {name: kind for kind, names in TYPES.items() for name in names}
DTYPES = {
    "float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16", "float64": "Float64", "int8": "Int8",
    "uint8": "Uint8", "int16": "Int16", "int32": "Int32", "int64": "Int64", "bool": "Bool",
    "float": "Float32", "double": "Float64", "c10::half": "Float16", "c10::bfloat16": "BFloat16", "int": "Int32",
    "signed char": "Int8", "unsigned char": "Uint8", "short int": "Int16", "short": "Int16", "long int": "Int64",
    "long": "Int64", "complex64": "Complex64", "c10::complex<float>": "Complex64"}
"""Element type in torch or its profiler, in lower case -> MegEngine's name."""


def type_of(operator: str) -> str:
    """Returns MegEngine's type: `aten::add_` -> "Elemwise"; an operator without a counterpart keeps its name."""
    namespace, _, name = operator.rpartition("::")
    bare = name if name.startswith("_") and not name.endswith("_") else name.rstrip("_")
    return _BY_NAME.get(bare, operator) if namespace in ("aten", "") else operator


def dtype_of(name: str) -> str | None:
    """Returns MegEngine's name of an element type: `c10::BFloat16` -> "BFloat16"; None for other arguments."""
    return DTYPES.get(name.lower())
