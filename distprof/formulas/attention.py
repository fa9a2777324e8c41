"""MACs of attention, every backend: masked positions in full, what causal masks leave beside it, GQA by the queries.

Forward is two products, scores and values. Backward as the fused kernels do it is five: the scores once more
(recompute), then the gradients of values, probabilities, queries and keys.

Where queries and keys differ in number a causal mask can begin in either corner. `scaled_dot_product_attention`
means top left: query i sees keys 0..i. FlashAttention since 2.1 means bottom right: the last query sees every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch._subclasses.fake_tensor import FakeTensor

from distprof.formulas.call import Call
from distprof.formulas.cost import Macs

BEYOND = 2**62
"""A window without an end."""


class Window(NamedTuple):
    """Keys a query sees: from `left` before its own position to `right` after it."""

    left: int = BEYOND
    right: int = BEYOND
    bottom_right: bool = False
    """The last query stands at the last key; else the first at the first."""

    def pairs(self, queries: int, keys: int) -> int:
        """(query, key) pairs that remain of queries x keys."""
        shift = keys - queries if self.bottom_right else 0
        return _below(queries, keys, shift + self.right + 1) - _below(queries, keys, shift - self.left)


def _below(queries: int, keys: int, bound: int) -> int:
    """Pairs with key < query + bound, without a loop: a triangle, then rows that see every key."""
    first = min(max(0, 1 - bound), queries)
    full = min(max(first, keys - bound), queries)
    rows = full - first
    return rows * (first + bound) + rows * (rows - 1) // 2 + (queries - full) * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """(query, key) pairs over batch and heads."""

    full: int
    causal: int
    note: str = ""


Reckon = Callable[[Call], Pairs]


def square(*, heads_first: bool, window: Callable[[Call], Window]) -> Reckon:
    """Every sequence is as long: [batch, head, position, width], or [batch, position, head, width]."""
    sequence = -2 if heads_first else -3

    def pairs(call: Call) -> Pairs:
        query, keys = call["query"], int(call["key"].shape[sequence])
        queries = int(query.shape[sequence])
        rest = int(query.shape[:-1].numel()) // max(queries, 1)
        return Pairs(full=rest * queries * keys, causal=rest * window(call).pairs(queries, keys))

    return pairs


def packed(queries: str, keys: str, *, window: Callable[[Call], Window], longest: tuple[str, str],
           used: str) -> Reckon:
    """[position, head, width] holds several sequences where their bounds are given; else as in `square`.

    Args:
        queries: Argument with the bounds of the sequences of queries, [sequences + 1]; absent or None: a batch.
        keys: The same for keys.
        window: What a query sees.
        longest: Arguments with the longest of both.
        used: Argument with the number of keys in use of each sequence, where keys lie in a cache.
    """
    dense = square(heads_first=False, window=window)

    def pairs(call: Call) -> Pairs:
        begins_q, begins_k, in_use = (call.arguments.get(name) for name in (queries, keys, used))
        if begins_q is not None and not begins_q.numel():
            begins_q = begins_k = None
        if begins_q is None and in_use is None:
            return dense(call)
        if not concrete(begins_q, begins_k, in_use):
            return dense(call) if begins_q is None else _at_most(call, begins_q.numel() - 1, longest)
        rows = _lengths(begins_q, call["query"])
        columns = in_use.tolist() if in_use is not None else _lengths(
            begins_q if begins_k is None else begins_k, call["key"])
        heads = int(call["query"].shape[-2])
        return Pairs(full=heads * sum(q * k for q, k in zip(rows, columns, strict=True)),
                     causal=heads * sum(window(call).pairs(q, k) for q, k in zip(rows, columns, strict=True)))

    return pairs


def _at_most(call: Call, sequences: int, longest: tuple[str, str]) -> Pairs:
    """No data behind the bounds (meta, fake): each sequence as long as the longest, and no longer than all."""
    query, key = call["query"], call["key"]
    rows, columns = (call.arguments.get(name) or BEYOND for name in longest)
    together = _rows(query) * _rows(key)
    full = int(query.shape[-2]) * min(sequences * int(rows) * int(columns), together)
    return Pairs(full=full, causal=full, note="at most: lengths of packed sequences are unknown without data")


def _rows(tensor: Any) -> int:
    return int(tensor.shape[:-2].numel())


def _lengths(bounds: Any, tensor: Any) -> list[int]:
    if bounds is None:
        return [int(tensor.shape[1])] * int(tensor.shape[0])
    return [end - begin for begin, end in pairwise(bounds.tolist())]


def concrete(*bounds: Any) -> bool:
    """True where the numbers in these tensors can be read; on meta and fake devices there are none."""
    return all(bound is None or not (bound.is_meta or isinstance(bound, FakeTensor)) for bound in bounds)


def forward(reckon: Reckon) -> Callable[[Call], Macs]:
    """Scores over the width of keys, values over that of values."""

    def macs(call: Call) -> Macs:
        pairs, width = reckon(call), int(call["query"].shape[-1] + call["value"].shape[-1])
        return Macs(full=pairs.full * width, causal=pairs.causal * width, note=pairs.note)

    return macs


def backward(reckon: Reckon) -> Callable[[Call], Macs]:
    """Three products over the width of keys, of which one is recomputation, two over that of values."""

    def macs(call: Call) -> Macs:
        pairs, scores = reckon(call), int(call["query"].shape[-1])
        width = 3 * scores + 2 * int(call["value"].shape[-1])
        return Macs(full=pairs.full * width, causal=pairs.causal * width, recompute=pairs.full * scores,
                    note=pairs.note)

    return macs


def top_left(call: Call) -> Window:
    """`is_causal` as scaled_dot_product_attention means it."""
    return Window(right=0) if call["is_causal"] else Window()


def bottom_right(call: Call) -> Window:
    """`is_causal` and windows as FlashAttention means them; a negative window has no end."""
    left, right = (call.arguments.get(name) for name in ("window_size_left", "window_size_right"))
    return Window(left=BEYOND if left is None or left < 0 else left, bottom_right=True,
                  right=0 if call["is_causal"] else BEYOND if right is None or right < 0 else right)


def varlen(call: Call) -> Window:
    """The same with `window_size` as a pair."""
    left, right = call.arguments.get("window_size") or (-1, -1)
    return bottom_right(Call(call.arguments | {"window_size_left": left, "window_size_right": right}, None))


def mask_type(call: Call) -> Window:
    """`custom_mask_type` 1 begins top left, 2 bottom right; `window_size` keys up to the own one."""
    kind, window = call["custom_mask_type"], call.arguments.get("window_size") or 0
    if not kind:
        return Window()
    return Window(left=window - 1 if window > 0 else BEYOND, right=0, bottom_right=kind == 2)


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
    return 2 * width * sum(q * k for q, k in zip(_positions(query), _positions(key), strict=True))


def _positions(tensor: Any) -> Iterable[int]:
    """Length of each sequence of a batch; a nested tensor, made from a padding mask, has one size each."""
    if tensor.is_nested:
        return [int(sizes[0]) for sizes in tensor._nested_tensor_size().tolist()]
    return [int(tensor.shape[1])] * int(tensor.shape[0])


_SQUARE = {
    "flash_attention": bottom_right,
    "efficient_attention": top_left,
    "cudnn_attention": top_left,
    "fused_attention_overrideable": top_left,
    "flash_attention_for_cpu": top_left,
}
_FLASH = packed("cum_seq_q", "cum_seq_k", window=bottom_right, longest=("max_q", "max_k"), used="seqused_k")
_CUDNN = packed("cum_seq_q", "cum_seq_k", window=top_left, longest=("max_q", "max_k"), used="seqused_k")
_EFFICIENT = packed("cu_seqlens_q", "cu_seqlens_k", window=mask_type, longest=("max_seqlen_q", "max_seqlen_k"),
                    used="seqlen_k")
_VARLEN = packed("cu_seq_q", "cu_seq_k", window=varlen, longest=("max_q", "max_k"), used="seqused_k")
_PLAIN = forward(square(heads_first=True, window=lambda _: Window()))

ATTENTION: dict[str, Callable[[Call], int | Macs]] = {
    **{f"aten::_scaled_dot_product_{kind}": forward(square(heads_first=True, window=window))
       for kind, window in _SQUARE.items()},
    **{f"aten::_scaled_dot_product_{kind}_backward": backward(square(heads_first=True, window=window))
       for kind, window in _SQUARE.items()},
    "aten::_scaled_dot_product_attention_math_for_mps": forward(square(heads_first=True, window=top_left)),
    "aten::_flash_attention_forward": forward(_FLASH),
    "aten::_flash_attention_forward_no_dropout_inplace": forward(_FLASH),
    "aten::_flash_attention_backward": backward(_FLASH),
    "aten::_cudnn_attention_forward": forward(_CUDNN),
    "aten::_cudnn_attention_backward": backward(_CUDNN),
    "aten::_efficient_attention_forward": forward(_EFFICIENT),
    "aten::_efficient_attention_backward": backward(_EFFICIENT),
    "torch_attn::_varlen_attn": forward(_VARLEN),
    "torch_attn::_varlen_attn_out": forward(_VARLEN),
    "torch_attn::_varlen_attn_backward": backward(_VARLEN),
    "aten::_native_multi_head_attention": native_multi_head,
    "aten::_triton_scaled_dot_attention": lambda call: _PLAIN(
        Call(call.arguments | {"query": call["q"], "key": call["k"], "value": call["v"]}, None)),
    "aten::_triton_multi_head_attention": native_multi_head,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
}
