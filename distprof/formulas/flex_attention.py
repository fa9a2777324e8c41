"""MACs of flex_attention: those of the blocks that its block mask keeps, cut at the ends of the sequences.

All positions of a kept block count, whatever its score function or mask does. Eager flex_attention (on the CPU, or not
compiled) computes every block and masks afterwards; only the kept blocks count there too.
"""

from __future__ import annotations

from typing import Any

import torch

from distprof.model.tensors import has_data
from distprof.shape_formulas.attention import AttentionPairs, attention_backward, attention_forward
from distprof.shape_formulas.operator_call import MacsFormula, OperatorCall

NO_DATA = "upper bound: the block mask is unknown without data"


def block_mask_pairs(call: OperatorCall) -> AttentionPairs:
    """(query, key) pairs in the blocks that the mask keeps."""
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
    """Pairs in the kept blocks: for each row of blocks, the first `counts` of its `indices` are blocks of keys."""
    batch, heads, queries, keys = shape
    rows = _lengths(queries, block[0], counts.shape[-1], counts.device)
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    columns = (keys - indices.long() * block[1]).clamp(0, block[1])
    sums = (columns * listed).sum(-1) * rows
    # one mask may serve all sequences or heads
    repeats: int = batch // max(counts.shape[0], 1) * (heads // max(counts.shape[1], 1))
    return int(sums.sum()) * repeats


def _lengths(positions: int, block: int, blocks: int, device: Any) -> torch.Tensor:
    begins: torch.Tensor = torch.arange(blocks, device=device) * block
    left: torch.Tensor = positions - begins
    return left.clamp(0, block)


FLEX: dict[str, MacsFormula] = {
    "higher_order::flex_attention": attention_forward(block_mask_pairs),
    "higher_order::flex_attention_backward": attention_backward(block_mask_pairs),
}
