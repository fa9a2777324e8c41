"""Classifies operators and kernels: matrix products, attention, convolution, norm, elementwise, communication, ...

The operator that launched a kernel says more than the kernel's name, which depends on the library; also, convolutions
and normalisations launch kernels that reorder data. If only its name is known, a kernel is classified by words in it.
"""

from __future__ import annotations

import re

import polars as pl

from distprof.merge.match.backend_names import communicates
from distprof.shape_formulas.kind_names import KIND_OF, bare_names

OTHER, COMMUNICATION, RUNTIME = "other", "communication", "runtime"
_OPERATORS = {
    "attention": re.compile(r"attention|flash|fmha|sdpa"),
    "convolution": re.compile(r"conv(?:olution|[123]d|_)|slow_conv|thnn_conv"),
    "matrix product": re.compile(r"^_*(?:addmm|addmv|addbmm|baddbmm|bmm|mm|mv|dot|vdot|linear|matmul|einsum|outer|"
                                 r"(?:weight_)?int\w*mm|scaled_\w*mm|grouped_mm|cslt\w*mm|\w*gemm)"),
    "norm": re.compile(r"norm(?!al(?!i))"),
    COMMUNICATION: re.compile(r"^record_param_comms|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    "embedding": re.compile(r"(?<!rotary_)embedding"),
    "optimizer": re.compile(r"^_(?:foreach|fused_(?:adam|sgd|adagrad))"),
}
"""Category -> matches names, without namespace, of operators that launch kernels; the first match counts."""
_KERNELS = {
    "attention": re.compile(r"attention|fmha|sdpa|flash_?(?:fwd|bwd|attn|decod)|_attn_|mha_"),
    "convolution": re.compile(r"conv(?!ert)|fprop|dgrad|wgrad|winograd|im2col|igemm|implicit_?gemm|n(?:chw|hwc)ton"),
    "matrix product": re.compile(r"gemm|gemv|nvjet|cijk_|splitk|matmul|wgmma|\bbmm_|triton_tem_|_mm_|dot_kernel"),
    "random": re.compile(r"distribution_elementwise|curand|philox"),
    "norm": re.compile(r"norm(?!al(?!i))|bn_[fb]w|welford|gammabetabackward"),
    "softmax": re.compile(r"softmax"),
    "embedding": re.compile(r"(?<!rotary_)embedding|vectorized_gather|pooled_embs"),
    "pool": re.compile(r"pool"),
    "loss": re.compile(r"loss"),
    "optimizer": re.compile(r"multi_tensor_apply|adam|sgd_"),
    "reduction": re.compile(r"^(?!triton_poi_).*(?:reduce|triton_(?:red|per)_|scan|sort|topk)"),
    "copy": re.compile(r"copy|catarray|index|gather|scatter|transpose|memcpy|fillfunctor|fillbuffer"),
    "elementwise": re.compile(r"elementwise|triton_poi_|pointwise|activation|subtensorop|rotary"),
}
"""Category -> matches words in lower-case names of kernels; the first match counts."""
_OF_KIND = {"contraction": "matrix product", "activation": "elementwise", "loss": "loss", "view": "copy"}
"""Kinds of operators that have another name here."""
_TRITON = re.compile(r"triton_\w*?fused_")
CATEGORIES = (*dict.fromkeys((*_OPERATORS, *_KERNELS, *(_OF_KIND.get(kind, kind) for kind in KIND_OF.values()))),
              "fill", RUNTIME, OTHER)


def category_of(name: str, kind: str, launched_by: str | None) -> str:
    """Returns the category of an operator or a kernel.

    Args:
        name: Its name.
        kind: operator, annotation, runtime, python, kernel, memcpy or memset.
        launched_by: The operator that launched a kernel, if known.

    Returns:
        One of `CATEGORIES`.
    """
    if kind in ("memcpy", "memset"):
        return "copy" if kind == "memcpy" else "fill"
    if kind == "operator":
        return _of_operator(name) or OTHER
    if kind != "kernel":
        return kind if kind == RUNTIME else OTHER
    if communicates(name):
        return COMMUNICATION
    by_operator = _of_operator(launched_by) if launched_by is not None else None
    return by_operator if by_operator not in (None, "copy") else _of_kernel(name) or by_operator or OTHER


def _of_operator(name: str) -> str | None:
    if _TRITON.match(name):
        return _of_kernel(name)
    bare = bare_names(name)
    found = next((category for category, words in _OPERATORS.items() if words.search(bare[1])), None)
    if found is not None:
        return found
    kind = next((KIND_OF[one] for one in bare if one in KIND_OF), None)
    return None if kind is None else _OF_KIND.get(kind, kind)


def _of_kernel(name: str) -> str | None:
    lower = name.lower()
    return next((category for category, words in _KERNELS.items() if words.search(lower)), None)


def with_categories(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds the column `category` to rows of operators."""
    alike = rows.select("op", "type", "launched_by").unique(maintain_order=True)
    words = alike.with_columns(pl.all().cast(pl.String)).iter_rows()
    known = alike.with_columns(category=pl.Series([category_of(*one) for one in words], dtype=pl.Categorical()))
    return rows.join(known, on=("op", "type", "launched_by"), how="left", nulls_equal=True, maintain_order="left")
