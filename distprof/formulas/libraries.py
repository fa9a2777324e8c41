"""MACs of attention and deformable convolution in libraries, by the names and schemas they register.

flash_attn 2 and 3 (Dao-AILab/flash-attention, flash_attn_interface.py and hopper/), xformers (csrc/attention, ROCm),
torchvision (csrc/ops/deform_conv2d.cpp). A library need not be there. xformers' other kernels register formulas
with torch, which are asked where we have none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from distprof.formulas.attention import backward, bottom_right, forward, mask_type, packed
from distprof.formulas.call import Call
from distprof.formulas.cost import Macs

Formula = Callable[[Call], int | Macs]

SHORT = {"query": "q", "key": "k", "value": "v"}


def renamed(formula: Formula, names: dict[str, str]) -> Formula:
    """The same formula for a schema that calls its arguments otherwise: ours -> theirs."""

    def macs(call: Call) -> int | Macs:
        given = {ours: call.arguments[theirs] for ours, theirs in names.items() if theirs in call.arguments}
        return formula(Call(call.arguments | given, call.output))

    return macs


def _flash(formula: Callable[..., Formula], **names: str) -> Formula:
    reckon = packed("cu_seqlens_q", "cu_seqlens_k", window=bottom_right, longest=("max_seqlen_q", "max_seqlen_k"),
                    used="seqused_k")
    return renamed(formula(reckon), SHORT | names)


_CK = packed("seqstart_q", "seqstart_k", window=mask_type, longest=("max_seqlen_q", "max_seqlen_k"), used="seqlen_k")


def deformable(call: Call) -> int:
    """A product with the sampled positions, as in a convolution; sampling itself is no contraction."""
    per_position: int = prod(call["weight"].shape[1:])
    return int(call.first_output.numel()) * per_position


def deformable_backward(call: Call) -> int:
    """Gradients of the sampled positions and of the weight, always both."""
    per_position: int = prod(call["weight"].shape[1:])
    return 2 * int(call["grad"].numel()) * per_position


LIBRARIES: dict[str, Formula] = {
    "flash_attn::_flash_attn_forward": _flash(forward, is_causal="causal"),
    "flash_attn::_flash_attn_backward": _flash(backward, is_causal="causal"),
    "flash_attn::_flash_attn_varlen_forward": _flash(forward, is_causal="causal"),
    "flash_attn::_flash_attn_varlen_backward": _flash(backward, is_causal="causal"),
    "flash_attn_3::_flash_attn_forward": _flash(forward, is_causal="causal"),
    "flash_attn_3::_flash_attn_backward": _flash(backward, seqused_k="sequed_k"),
    "flash_attn_3::fwd": _flash(forward),
    "flash_attn_3::bwd": _flash(backward),
    "xformers::efficient_attention_forward_ck": forward(_CK),
    "xformers::efficient_attention_backward_ck": backward(_CK),
    "torchvision::deform_conv2d": deformable,
    "torchvision::_deform_conv2d_backward": deformable_backward,
}
"""Names that exist only where the library is loaded."""
