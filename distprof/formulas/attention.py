"""MACs of attention whose (query, key) pairs depend on tensor values: packed sequences and flex_attention's blocks.

Packed sequences may differ in length: their bounds and lengths are read from tensors.

For flex_attention, the blocks that its block mask keeps are counted, cut at the ends of the sequences. All positions of
a kept block count, whatever its score function or mask does. Eager flex_attention (on the CPU, or not compiled)
computes every block and masks afterwards, but only the kept blocks count there too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

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
    """Returns a function that counts the pairs of packed sequences [position, head, width], or as `dense_pairs` without
    bounds.

    Args:
        queries: Name of the argument with the bounds of the query sequences, [sequences + 1]; absent or None: a batch.
        keys: The same for keys.
        window: Returns which keys a query sees.
        longest: Names of the arguments with the lengths of the longest query and key sequences.
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
    """Returns an upper bound for tensors without data (meta, fake): all sequences are as long as the longest."""
    query, key = call["query"], call["key"]
    rows, columns = (call.arguments.get(name) or BEYOND for name in longest)
    together = _rows(query) * _rows(key)
    full = int(query.shape[-2]) * min(sequences * int(rows) * int(columns), together)
    return AttentionPairs(full=full, causal=full,
                          note="upper bound: lengths of packed sequences are unknown without data")


def _rows(tensor: torch.Tensor) -> int:
    return int(tensor.shape[:-2].numel())


def _lengths(bounds: Any, tensor: torch.Tensor) -> list[int]:
    if bounds is None:
        return [int(tensor.shape[1])] * int(tensor.shape[0])
    return [end - begin for begin, end in pairwise(bounds.tolist())]


def varlen_window(call: OperatorCall) -> AttentionWindow:
    """Returns the window for FlashAttention's `is_causal` and a `window_size` given as a pair."""
    left, right = call.arguments.get("window_size") or (-1, -1)
    sizes = {"window_size_left": left, "window_size_right": right}
    return bottom_right_window(OperatorCall(call.arguments | sizes, None))


def mask_type_window(call: OperatorCall) -> AttentionWindow:
    """Returns the window for `custom_mask_type`: 1 is aligned top left, 2 bottom right; a query sees `window_size` keys
    up to its own."""
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


NO_DATA = "upper bound: the block mask is unknown without data"


def block_mask_pairs(call: OperatorCall) -> AttentionPairs:
    """Returns the number of (query, key) pairs in the blocks that the mask keeps."""
    query, key, mask = call["query"], call["key"], call["block_mask"]
    shape = tuple(map(int, (*query.shape[:-1], key.shape[-2])))
    everything = shape[0] * shape[1] * shape[2] * shape[3]
    if not has_data(*mask[2:6]):
        return AttentionPairs(full=everything, causal=everything, note=NO_DATA)
    kept = _pairs_in_blocks(mask[2], mask[3], shape, mask[-3:-1])
    if mask[4] is not None:
        kept += _pairs_in_blocks(mask[4], mask[5], shape, mask[-3:-1])
    note = "" if kept == everything else "kept blocks of the block mask"
    return AttentionPairs(full=kept, causal=kept, note=note)


def _pairs_in_blocks(counts: Any, indices: Any, shape: tuple[int, ...], block: tuple[int, int]) -> int:
    """Returns the number of pairs in kept blocks: in each row of blocks, the first `counts` of `indices` are key
    blocks."""
    batch, heads, queries, keys = shape
    rows = _lengths_of_blocks(queries, block[0], counts.shape[-1], counts.device)
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    columns = (keys - indices.long() * block[1]).clamp(0, block[1])
    sums = (columns * listed).sum(-1) * rows
    # one mask may serve all sequences or heads
    repeats: int = batch // max(counts.shape[0], 1) * (heads // max(counts.shape[1], 1))
    return int(sums.sum()) * repeats


def _lengths_of_blocks(positions: int, block: int, blocks: int, device: Any) -> torch.Tensor:
    begins: torch.Tensor = torch.arange(blocks, device=device) * block
    left: torch.Tensor = positions - begins
    return left.clamp(0, block)


FLEX: dict[str, MacsFormula] = {
    "higher_order::flex_attention": attention_forward(block_mask_pairs),
    "higher_order::flex_attention_backward": attention_backward(block_mask_pairs),
}
