"""MACs of flex_attention: a block mask says which blocks are computed at all; the others cost nothing.

The two higher-order operators come in; MACs of the kept blocks go out, edge blocks cut off where the sequence ends.
A score function or mask inside a kept block is not looked into: its positions are computed. Eager flex_attention
(CPU, or not compiled) computes every block and masks afterwards; what counts is what the mask asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distprof.formulas.attention import Pairs, backward, concrete, forward
from distprof.formulas.call import Call
from distprof.formulas.cost import Macs

NOWHERE = "at most: the block mask is unknown without data"


def pairs(call: Call) -> Pairs:
    """(query, key) pairs in the blocks that the mask keeps."""
    query, key, mask = call["query"], call["key"], call["block_mask"]
    shape = tuple(map(int, (*query.shape[:-1], key.shape[-2])))
    everything = shape[0] * shape[1] * shape[2] * shape[3]
    if not concrete(*mask[2:6]):
        return Pairs(full=everything, causal=everything, note=NOWHERE)
    kept = _kept(mask[2], mask[3], shape, mask[-3:-1])
    if mask[4] is not None:
        kept += _kept(mask[4], mask[5], shape, mask[-3:-1])
    note = "" if kept == everything else "kept blocks of the block mask"
    return Pairs(full=kept, causal=kept, note=note)


def _kept(counts: Any, indices: Any, shape: tuple[int, ...], block: tuple[int, int]) -> int:
    """Pairs in the listed blocks: for each row of blocks, `counts` of its `indices` name blocks of keys."""
    batch, heads, queries, keys = shape
    rows = _lengths(queries, block[0], counts.shape[-1], counts.device)
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    columns = (keys - indices.long() * block[1]).clamp(0, block[1])
    sums = (columns * listed).sum(-1) * rows
    # a mask may be one for all sequences or heads
    repeats: int = batch // max(counts.shape[0], 1) * (heads // max(counts.shape[1], 1))
    return int(sums.sum()) * repeats


def _lengths(positions: int, block: int, blocks: int, device: Any) -> torch.Tensor:
    begins: torch.Tensor = torch.arange(blocks, device=device) * block
    left: torch.Tensor = positions - begins
    return left.clamp(0, block)


FLEX: dict[str, Callable[[Call], int | Macs]] = {
    "higher_order::flex_attention": forward(pairs),
    "higher_order::flex_attention_backward": backward(pairs),
}
