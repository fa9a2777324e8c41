"""MACs of attention, every backend: masked positions count in full, grouped heads (GQA) by the queries.

Forward is two products, scores and values. Backward as the fused kernels do it is five: the scores once more, then
the gradients of values, probabilities, queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from distprof.formulas.call import Call

Pairs = Callable[[Call], int]


def _dense(sequence: int) -> Pairs:
    """(query, key) pairs over batch and heads; `sequence` is the dimension of positions."""

    def pairs(call: Call) -> int:
        query, key = call["query"], call["key"]
        return int(query.numel() // max(query.shape[-1], 1) * key.shape[sequence])

    return pairs


def _lengths(cumulative: Any) -> list[int]:
    return [end - begin for begin, end in pairwise(cumulative.tolist())]


def _packed(queries: str, keys: str) -> Pairs:
    """[batch, position, head, width], or several sequences in one where their bounds are given."""

    def pairs(call: Call) -> int:
        bounds = call[queries], call[keys]
        if any(bound is None or bound.is_meta or not bound.numel() for bound in bounds):
            return _dense(-3)(call)
        lengths = zip(_lengths(bounds[0]), _lengths(bounds[1]), strict=True)
        return int(call["query"].shape[-2]) * sum(query * key for query, key in lengths)

    return pairs


def forward(pairs: Pairs) -> Callable[[Call], int]:
    """Scores over the width of keys, values over that of values."""
    return lambda call: pairs(call) * int(call["query"].shape[-1] + call["value"].shape[-1])


def backward(pairs: Pairs) -> Callable[[Call], int]:
    """Three products over the width of keys, two over that of values."""
    return lambda call: pairs(call) * int(3 * call["query"].shape[-1] + 2 * call["value"].shape[-1])


def native_multi_head(call: Call) -> int:
    """Projections in, attention, projection out."""
    query, key, value, width = call["query"], call["key"], call["value"], int(call["embed_dim"])
    projections = (query.numel() + key.numel() + value.numel() + query.numel()) * width
    return int(projections) + _heads(query, key, width)


def encoder_layer(call: Call) -> int:
    """Self-attention with its four projections, then two linear layers."""
    source, width = call["src"], int(call["embed_dim"])
    linear = 4 * source.numel() * width + 2 * source.numel() * call["ffn_weight_1"].shape[0]
    return int(linear) + _heads(source, source, width)


def _heads(query: Any, key: Any, width: int) -> int:
    # [batch, position, embedding]; the heads share the width, so their number drops out
    return int(2 * query.numel() // max(query.shape[-1], 1) * key.shape[1] * width)


ATTENTION: dict[str, Callable[[Call], int]] = {
    **{
        f"aten::_scaled_dot_product_{kind}": forward(_dense(-2))
        for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
                     "flash_attention_for_cpu")
    },
    **{
        f"aten::_scaled_dot_product_{kind}_backward": backward(_dense(-2))
        for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
                     "flash_attention_for_cpu")
    },
    "aten::_flash_attention_forward": forward(_packed("cum_seq_q", "cum_seq_k")),
    "aten::_flash_attention_backward": backward(_packed("cum_seq_q", "cum_seq_k")),
    "aten::_efficient_attention_forward": forward(_packed("cu_seqlens_q", "cu_seqlens_k")),
    "aten::_efficient_attention_backward": backward(_packed("cu_seqlens_q", "cu_seqlens_k")),
    "aten::_native_multi_head_attention": native_multi_head,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
}
