"""FLOPs of an operator: shapes of one call come in, a count goes out, or None where no formula is known.

The table is torch's own (`torch.utils.flop_counter`), corrected where it is wrong: convolution backward ignores
groups there, and attention on CPU is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
Formula = Callable[..., int]


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, torch.Tensor) else value


def _convolution_macs(image: Sequence[int], weight: Sequence[int], output: Sequence[int], *, transposed: bool) -> int:
    # the weight is [out, in / groups, ...], transposed [in, out / groups, ...]: groups are in its second size
    positions = image if transposed else output
    return prod(positions[2:]) * positions[0] * prod(weight)


def convolution_backward(
    grad_output: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, _bias_sizes: Any, _stride: Any,
    _padding: Any, _dilation: Any, transposed: bool, _output_padding: Any, _groups: int,  # noqa: FBT001 (aten's order)
    output_mask: Sequence[bool], **_: Any,
) -> int:
    """Each of the two wanted gradients (image, weight) costs what the forward call costs."""
    macs = _convolution_macs(image.shape, weight.shape, grad_output.shape, transposed=transposed)
    return 2 * macs * (bool(output_mask[0]) + bool(output_mask[1]))


def attention_on_cpu(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """Two matrix products, masked positions included."""
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def attention_on_cpu_backward(grad_output: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
                              value: torch.Tensor, *_: Any, **__: Any) -> int:
    """Five matrix products: the scores once more, then four gradients."""
    return int(sdpa_backward_flop_count(grad_output.shape, query.shape, key.shape, value.shape))


CORRECTED: dict[Any, Formula] = {
    aten.convolution_backward: convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: attention_on_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_on_cpu_backward,
}


def has_formula(packet: Any) -> bool:
    """True where the FLOPs of an operator are known."""
    return packet in CORRECTED or packet in flop_registry


def flops(packet: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> int | None:
    """FLOPs of one call, 2 per multiply-accumulate; None where no formula is known.

    Args:
        packet: The operator, like `torch.ops.aten.mm`.
        args: Positional arguments of the call; tensors have the shapes of this rank.
        kwargs: Keyword arguments of the call.
        output: What the call returned.
    """
    if packet in CORRECTED:
        return CORRECTED[packet](*args, **kwargs)
    formula = flop_registry.get(packet)
    return None if formula is None else int(formula(*args, **kwargs, out_val=output))
