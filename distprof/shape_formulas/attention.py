"""MACs of attention in all backends: in full, and excluding pairs that causal masks hide.

Forward consists of two matrix products, scores and values. Backward of fused kernels consists of five: the scores again
(recompute), then the gradients of values, probabilities, queries and keys. With grouped-query attention (GQA), the
heads of the queries count.

If the numbers of queries and keys differ, a causal mask is aligned with one of two corners. In
`scaled_dot_product_attention` it is the top left: query i sees keys 0..i. In FlashAttention since 2.1 it is the bottom
right: the last query sees every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from distprof.shape_formulas.operator_call import Macs, MacsFormula, OperatorCall

BEYOND = 2**62
"""Size of an unlimited window."""


class AttentionWindow(NamedTuple):
    """The keys that a query sees: from `left` before its own position to `right` after it."""

    left: int = BEYOND
    right: int = BEYOND
    bottom_right: bool = False
    """True if the last query is aligned with the last key; False if the first query is aligned with the first key."""

    def pairs(self, queries: int, keys: int) -> int:
        """Returns the number of visible (query, key) pairs among queries x keys."""
        shift = keys - queries if self.bottom_right else 0
        return _below(queries, keys, shift + self.right + 1) - _below(queries, keys, shift - self.left)


def _below(queries: int, keys: int, bound: int) -> int:
    """Returns the number of pairs with key < query + bound in closed form: a triangle, then rows that see every key."""
    first = min(max(0, 1 - bound), queries)
    full = min(max(first, keys - bound), queries)
    rows = full - first
    return rows * (first + bound) + rows * (rows - 1) // 2 + (queries - full) * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPairs:
    """Numbers of (query, key) pairs over batch and heads, in full and excluding those that a causal mask or window
    hides."""

    full: int
    causal: int
    note: str = ""


CountPairs = Callable[[OperatorCall], AttentionPairs]


def dense_pairs(*, heads_first: bool, window: Callable[[OperatorCall], AttentionWindow]) -> CountPairs:
    """Returns a function that counts the pairs of sequences of equal length: [batch, head, position, width], or [batch,
    position, head, width]."""
    sequence = -2 if heads_first else -3

    def pairs(call: OperatorCall) -> AttentionPairs:
        query, keys = call["query"], int(call["key"].shape[sequence])
        queries = int(query.shape[sequence])
        rest = prod(query.shape[:-1]) // max(queries, 1)
        return AttentionPairs(full=rest * queries * keys, causal=rest * window(call).pairs(queries, keys))

    return pairs


def attention_forward(count_pairs: CountPairs) -> Callable[[OperatorCall], Macs]:
    """Returns the formula for forward: two products per pair, scores (width of keys) and values (width of values)."""

    def macs(call: OperatorCall) -> Macs:
        pairs, width = count_pairs(call), int(call["query"].shape[-1] + call["value"].shape[-1])
        return Macs(full=pairs.full * width, causal=pairs.causal * width, note=pairs.note)

    return macs


def attention_backward(count_pairs: CountPairs) -> Callable[[OperatorCall], Macs]:
    """Returns the formula for backward: three products per pair over the width of keys, one of them recomputation, and
    two over that of values."""

    def macs(call: OperatorCall) -> Macs:
        pairs, scores = count_pairs(call), int(call["query"].shape[-1])
        width = 3 * scores + 2 * int(call["value"].shape[-1])
        return Macs(full=pairs.full * width, causal=pairs.causal * width, recompute=pairs.full * scores,
                    note=pairs.note)

    return macs


def top_left_window(call: OperatorCall) -> AttentionWindow:
    """Returns the window for `is_causal` of scaled_dot_product_attention."""
    return AttentionWindow(right=0) if call["is_causal"] else AttentionWindow()


def bottom_right_window(call: OperatorCall) -> AttentionWindow:
    """Returns the window for FlashAttention's `is_causal` and window sizes; a negative size is unlimited."""
    left, right = (call.arguments.get(name) for name in ("window_size_left", "window_size_right"))
    return AttentionWindow(left=BEYOND if left is None or left < 0 else left, bottom_right=True,
                  right=0 if call["is_causal"] else BEYOND if right is None or right < 0 else right)


def native_multi_head(call: OperatorCall) -> int:
    """Returns the MACs of input projections, attention and output projection."""
    query, key, value, width = call["query"], call["key"], call["value"], int(call["embed_dim"])
    projections = (query.numel() + key.numel() + value.numel() + query.numel()) * width
    return int(projections) + _heads(query, key, width)


def encoder_layer(call: OperatorCall) -> int:
    """Returns the MACs of self-attention with four projections, followed by two linear layers."""
    source, width = call["src"], int(call["embed_dim"])
    linear = 4 * source.numel() * width + 2 * source.numel() * call["ffn_weight_1"].shape[0]
    return int(linear) + _heads(source, source, width)


def _heads(query: object, key: object, width: int) -> int:
    # [batch, position, embedding]; the heads divide the width, so their number cancels out
    return 2 * width * sum(q * k for q, k in zip(_positions(query), _positions(key), strict=True))


def _positions(tensor: Any) -> Iterable[int]:
    """Returns the length of each sequence in a batch; those in a nested tensor differ."""
    if tensor.is_nested:
        return [int(sizes[0]) for sizes in tensor._nested_tensor_size().tolist()]
    return [int(tensor.shape[1])] * int(tensor.shape[0])


_DENSE = {
    "flash_attention": bottom_right_window,
    "efficient_attention": top_left_window,
    "cudnn_attention": top_left_window,
    "fused_attention_overrideable": top_left_window,
    "flash_attention_for_cpu": top_left_window,
}

ATTENTION: dict[str, MacsFormula] = {
    **{f"aten::_scaled_dot_product_{kind}": attention_forward(dense_pairs(heads_first=True, window=window))
       for kind, window in _DENSE.items()},
    **{f"aten::_scaled_dot_product_{kind}_backward": attention_backward(dense_pairs(heads_first=True, window=window))
       for kind, window in _DENSE.items()},
    "aten::_scaled_dot_product_attention_math_for_mps": attention_forward(
        dense_pairs(heads_first=True, window=top_left_window)),
    "aten::_native_multi_head_attention": native_multi_head,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
    "aten::_triton_multi_head_attention": native_multi_head,
}
