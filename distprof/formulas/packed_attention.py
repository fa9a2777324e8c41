"""MACs of attention whose sequences may differ in length: bounds and lengths are read from tensors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from distprof.model.tensors import has_data
from distprof.shape_formulas.attention import (
    BEYOND,
    AttentionPairs,
    AttentionWindow,
    CountPairs,
    attention_backward,
    attention_forward,
    bottom_right_window,
    dense_pairs,
    top_left_window,
)
from distprof.shape_formulas.operator_call import MacsFormula, OperatorCall


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
    return AttentionPairs(full=full, causal=full,
                          note="upper bound: lengths of packed sequences are unknown without data")


def _rows(tensor: Any) -> int:
    return int(tensor.shape[:-2].numel())


def _lengths(bounds: Any, tensor: Any) -> list[int]:
    if bounds is None:
        return [int(tensor.shape[1])] * int(tensor.shape[0])
    return [end - begin for begin, end in pairwise(bounds.tolist())]


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


_FLASH = packed_pairs("cum_seq_q", "cum_seq_k", window=bottom_right_window, longest=("max_q", "max_k"),
                      used="seqused_k")
_CUDNN = packed_pairs("cum_seq_q", "cum_seq_k", window=top_left_window, longest=("max_q", "max_k"), used="seqused_k")
_EFFICIENT = packed_pairs("cu_seqlens_q", "cu_seqlens_k", window=mask_type_window,
                          longest=("max_seqlen_q", "max_seqlen_k"), used="seqlen_k")
_VARLEN = packed_pairs("cu_seq_q", "cu_seq_k", window=varlen_window, longest=("max_q", "max_k"), used="seqused_k")
_PLAIN = attention_forward(dense_pairs(heads_first=True, window=lambda _: AttentionWindow()))

PACKED_ATTENTION: dict[str, MacsFormula] = {
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
    "aten::_triton_scaled_dot_attention": lambda call: _PLAIN(
        OperatorCall(call.arguments | {"query": call["q"], "key": call["k"], "value": call["v"]}, None)),
}
