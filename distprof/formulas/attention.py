"""MACs of attention in all backends: in full, and without the pairs that causal masks hide.

Forward is two matrix products, scores and values. Backward of fused kernels is five: the scores again (recompute), then
the gradients of values, probabilities, queries and keys. With grouped queries (GQA) the heads of the queries count.

If the numbers of queries and keys differ, a causal mask starts in one of two corners. `scaled_dot_product_attention`
starts top left: query i sees keys 0..i. FlashAttention since 2.1 starts bottom right: the last query sees every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from distprof.formulas.operator_call import MacsFormula, OperatorCall
from distprof.formulas.operator_cost import Macs
from distprof.model.tensors import has_data

BEYOND = 2**62
"""Size of an unlimited window."""


class AttentionWindow(NamedTuple):
    """The keys a query sees: from `left` before its own position to `right` after it."""

    left: int = BEYOND
    right: int = BEYOND
    bottom_right: bool = False
    """True: the last query is aligned with the last key. False: the first with the first."""

    def pairs(self, queries: int, keys: int) -> int:
        """Visible (query, key) pairs among queries x keys."""
        shift = keys - queries if self.bottom_right else 0
        return _below(queries, keys, shift + self.right + 1) - _below(queries, keys, shift - self.left)


def _below(queries: int, keys: int, bound: int) -> int:
    """AttentionPairs with key < query + bound in closed form: a triangle, then rows that see every key."""
    first = min(max(0, 1 - bound), queries)
    full = min(max(first, keys - bound), queries)
    rows = full - first
    return rows * (first + bound) + rows * (rows - 1) // 2 + (queries - full) * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPairs:
    """Number of (query, key) pairs over batch and heads, in full and without those a mask hides."""

    full: int
    causal: int
    note: str = ""


CountPairs = Callable[[OperatorCall], AttentionPairs]


def dense_pairs(*, heads_first: bool, window: Callable[[OperatorCall], AttentionWindow]) -> CountPairs:
    """Sequences of one length: [batch, head, position, width], or [batch, position, head, width]."""
    sequence = -2 if heads_first else -3

    def pairs(call: OperatorCall) -> AttentionPairs:
        query, keys = call["query"], int(call["key"].shape[sequence])
        queries = int(query.shape[sequence])
        rest = int(query.shape[:-1].numel()) // max(queries, 1)
        return AttentionPairs(full=rest * queries * keys, causal=rest * window(call).pairs(queries, keys))

    return pairs


def packed_pairs(queries: str, keys: str, *, window: Callable[[OperatorCall], AttentionWindow],
                 longest: tuple[str, str], used: str) -> CountPairs:
    """Several sequences in [position, head, width], if their bounds are given; else as `dense_pairs`.

    Args:
        queries: Name of the argument with the bounds of the query sequences, [sequences + 1]; absent or None: a batch.
        keys: The same for keys.
        window: Returns the keys that a query sees.
        longest: Names of the arguments with the longest query and key sequence.
        used: Name of the argument with the number of valid keys of each sequence in a key cache.
    """
    dense = dense_pairs(heads_first=False, window=window)

    def pairs(call: OperatorCall) -> AttentionPairs:
        begins_q, begins_k, in_use = (call.arguments.get(name) for name in (queries, keys, used))
        if begins_q is not None and not begins_q.numel():
            begins_q = begins_k = None
        if begins_q is None and in_use is None:
            return dense(call)
        if not has_data(begins_q, begins_k, in_use):
            return dense(call) if begins_q is None else _at_most(call, begins_q.numel() - 1, longest)
        rows = _lengths(begins_q, call["query"])
        columns = in_use.tolist() if in_use is not None else _lengths(
            begins_q if begins_k is None else begins_k, call["key"])
        heads = int(call["query"].shape[-2])
        return AttentionPairs(full=heads * sum(q * k for q, k in zip(rows, columns, strict=True)),
                     causal=heads * sum(window(call).pairs(q, k) for q, k in zip(rows, columns, strict=True)))

    return pairs


def _at_most(call: OperatorCall, sequences: int, longest: tuple[str, str]) -> AttentionPairs:
    """Upper bound without data (meta, fake): each sequence as long as the longest, and no longer than all."""
    query, key = call["query"], call["key"]
    rows, columns = (call.arguments.get(name) or BEYOND for name in longest)
    together = _rows(query) * _rows(key)
    full = int(query.shape[-2]) * min(sequences * int(rows) * int(columns), together)
    return AttentionPairs(full=full, causal=full, note="at most: lengths of packed sequences are unknown without data")


def _rows(tensor: Any) -> int:
    return int(tensor.shape[:-2].numel())


def _lengths(bounds: Any, tensor: Any) -> list[int]:
    if bounds is None:
        return [int(tensor.shape[1])] * int(tensor.shape[0])
    return [end - begin for begin, end in pairwise(bounds.tolist())]


def attention_forward(count_pairs: CountPairs) -> Callable[[OperatorCall], Macs]:
    """Two products per pair: scores (width of keys) and values (width of values)."""

    def macs(call: OperatorCall) -> Macs:
        pairs, width = count_pairs(call), int(call["query"].shape[-1] + call["value"].shape[-1])
        return Macs(full=pairs.full * width, causal=pairs.causal * width, note=pairs.note)

    return macs


def attention_backward(count_pairs: CountPairs) -> Callable[[OperatorCall], Macs]:
    """Three products per pair over the width of keys, one of them recomputation, and two over the width of values."""

    def macs(call: OperatorCall) -> Macs:
        pairs, scores = count_pairs(call), int(call["query"].shape[-1])
        width = 3 * scores + 2 * int(call["value"].shape[-1])
        return Macs(full=pairs.full * width, causal=pairs.causal * width, recompute=pairs.full * scores,
                    note=pairs.note)

    return macs


def top_left_window(call: OperatorCall) -> AttentionWindow:
    """`is_causal` of scaled_dot_product_attention."""
    return AttentionWindow(right=0) if call["is_causal"] else AttentionWindow()


def bottom_right_window(call: OperatorCall) -> AttentionWindow:
    """`is_causal` and window sizes of FlashAttention; a negative size is unlimited."""
    left, right = (call.arguments.get(name) for name in ("window_size_left", "window_size_right"))
    return AttentionWindow(left=BEYOND if left is None or left < 0 else left, bottom_right=True,
                  right=0 if call["is_causal"] else BEYOND if right is None or right < 0 else right)


def varlen_window(call: OperatorCall) -> AttentionWindow:
    """`is_causal` and window sizes of FlashAttention, with `window_size` as a pair."""
    left, right = call.arguments.get("window_size") or (-1, -1)
    sizes = {"window_size_left": left, "window_size_right": right}
    return bottom_right_window(OperatorCall(call.arguments | sizes, None))


def mask_type_window(call: OperatorCall) -> AttentionWindow:
    """`custom_mask_type` 1 starts top left, 2 bottom right; a query sees `window_size` keys up to its own."""
    kind, window = call["custom_mask_type"], call.arguments.get("window_size") or 0
    if not kind:
        return AttentionWindow()
    return AttentionWindow(left=window - 1 if window > 0 else BEYOND, right=0, bottom_right=kind == 2)


def native_multi_head(call: OperatorCall) -> int:
    """Input projections, attention and output projection."""
    query, key, value, width = call["query"], call["key"], call["value"], int(call["embed_dim"])
    projections = (query.numel() + key.numel() + value.numel() + query.numel()) * width
    return int(projections) + _heads(query, key, width)


def encoder_layer(call: OperatorCall) -> int:
    """Self-attention with four projections, then two linear layers."""
    source, width = call["src"], int(call["embed_dim"])
    linear = 4 * source.numel() * width + 2 * source.numel() * call["ffn_weight_1"].shape[0]
    return int(linear) + _heads(source, source, width)


def _heads(query: Any, key: Any, width: int) -> int:
    # [batch, position, embedding]; the heads share the width, so their number cancels out
    return 2 * width * sum(q * k for q, k in zip(_positions(query), _positions(key), strict=True))


def _positions(tensor: Any) -> Iterable[int]:
    """Length of each sequence of a batch; sequences of a nested tensor differ in length."""
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
_FLASH = packed_pairs("cum_seq_q", "cum_seq_k", window=bottom_right_window, longest=("max_q", "max_k"),
                      used="seqused_k")
_CUDNN = packed_pairs("cum_seq_q", "cum_seq_k", window=top_left_window, longest=("max_q", "max_k"), used="seqused_k")
_EFFICIENT = packed_pairs("cu_seqlens_q", "cu_seqlens_k", window=mask_type_window,
                          longest=("max_seqlen_q", "max_seqlen_k"), used="seqlen_k")
_VARLEN = packed_pairs("cu_seq_q", "cu_seq_k", window=varlen_window, longest=("max_q", "max_k"), used="seqused_k")
_PLAIN = attention_forward(dense_pairs(heads_first=True, window=lambda _: AttentionWindow()))

ATTENTION: dict[str, MacsFormula] = {
    **{f"aten::_scaled_dot_product_{kind}": attention_forward(dense_pairs(heads_first=True, window=window))
       for kind, window in _DENSE.items()},
    **{f"aten::_scaled_dot_product_{kind}_backward": attention_backward(dense_pairs(heads_first=True, window=window))
       for kind, window in _DENSE.items()},
    "aten::_scaled_dot_product_attention_math_for_mps": attention_forward(
        dense_pairs(heads_first=True, window=top_left_window)),
    "aten::_flash_attention_forward": attention_forward(_FLASH),
    "aten::_flash_attention_forward_no_dropout_inplace": attention_forward(_FLASH),
    "aten::_flash_attention_backward": attention_backward(_FLASH),
    "aten::_cudnn_attention_forward": attention_forward(_CUDNN),
    "aten::_cudnn_attention_backward": attention_backward(_CUDNN),
    "aten::_efficient_attention_forward": attention_forward(_EFFICIENT),
    "aten::_efficient_attention_backward": attention_backward(_EFFICIENT),
    "torch_attn::_varlen_attn": attention_forward(_VARLEN),
    "torch_attn::_varlen_attn_out": attention_forward(_VARLEN),
    "torch_attn::_varlen_attn_backward": attention_backward(_VARLEN),
    "aten::_native_multi_head_attention": native_multi_head,
    "aten::_triton_scaled_dot_attention": lambda call: _PLAIN(
        OperatorCall(call.arguments | {"query": call["q"], "key": call["k"], "value": call["v"]}, None)),
    "aten::_triton_multi_head_attention": native_multi_head,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
}
