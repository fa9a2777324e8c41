"""MACs of operators of flash_attn 2 and 3, xformers (ROCm), torchvision and bitsandbytes, which need not be installed.

Names and schemas are those of Dao-AILab/flash-attention (flash_attn_interface.py, hopper/), xformers (csrc/attention),
torchvision (csrc/ops/deform_conv2d.cpp) and bitsandbytes (bitsandbytes/_ops.py). Other kernels of xformers register
formulas with torch, which count too.
"""

from __future__ import annotations

from collections.abc import Callable

from distprof.formulas.attention import mask_type_window, packed_pairs
from distprof.shape_formulas.attention import attention_backward, attention_forward, bottom_right_window
from distprof.shape_formulas.convolution import convolution, one_way_backward
from distprof.shape_formulas.operator_call import MacsFormula, OperatorCall
from distprof.shape_formulas.operator_cost import Macs

SHORT = {"query": "q", "key": "k", "value": "v"}


def renamed(formula: MacsFormula, names: dict[str, str]) -> MacsFormula:
    """A formula for a schema with other argument names: `names` maps ours to theirs."""

    def macs(call: OperatorCall) -> int | Macs:
        given = {ours: call.arguments[theirs] for ours, theirs in names.items() if theirs in call.arguments}
        return formula(OperatorCall(call.arguments | given, call.output))

    return macs


def _flash(formula: Callable[..., MacsFormula], **names: str) -> MacsFormula:
    pairs = packed_pairs("cu_seqlens_q", "cu_seqlens_k", window=bottom_right_window,
                         longest=("max_seqlen_q", "max_seqlen_k"), used="seqused_k")
    return renamed(formula(pairs), SHORT | names)


def four_bits(call: OperatorCall) -> int:
    """[..., k] times a transposed weight of 4 bits per element; only `shapeB` shows its shape [n, k]."""
    return int(call["A"].numel() * call["shapeB"][0])


def eight_bits(call: OperatorCall) -> int:
    """[..., k] times the transposed [n, k]."""
    return int(call["A"].numel() * call["B"].shape[0])


def eight_bits_with_outliers(call: OperatorCall) -> int:
    """The same; then the columns with outliers once more, in higher precision."""
    columns, rows = call["CB"].shape[0], call["A"].numel() // max(call["A"].shape[-1], 1)
    outliers = call["outlier_cols"].numel() if call.arguments.get("outlier_cols") is not None else 0
    return int(columns * (call["A"].numel() + rows * outliers))


_CK = packed_pairs("seqstart_q", "seqstart_k", window=mask_type_window, longest=("max_seqlen_q", "max_seqlen_k"),
                   used="seqlen_k")

THIRD_PARTY: dict[str, MacsFormula] = {
    "flash_attn::_flash_attn_forward": _flash(attention_forward, is_causal="causal"),
    "flash_attn::_flash_attn_backward": _flash(attention_backward, is_causal="causal"),
    "flash_attn::_flash_attn_varlen_forward": _flash(attention_forward, is_causal="causal"),
    "flash_attn::_flash_attn_varlen_backward": _flash(attention_backward, is_causal="causal"),
    "flash_attn_3::_flash_attn_forward": _flash(attention_forward, is_causal="causal"),
    "flash_attn_3::_flash_attn_backward": _flash(attention_backward, seqused_k="sequed_k"),
    "flash_attn_3::fwd": _flash(attention_forward),
    "flash_attn_3::bwd": _flash(attention_backward),
    "xformers::efficient_attention_forward_ck": attention_forward(_CK),
    "xformers::efficient_attention_backward_ck": attention_backward(_CK),
    "bitsandbytes::gemm_4bit": four_bits,
    "bitsandbytes::gemv_4bit": four_bits,
    "bitsandbytes::int8_linear_matmul": eight_bits,
    "bitsandbytes::int8_scaled_mm": eight_bits,
    "bitsandbytes::int8_mixed_scaled_mm": eight_bits_with_outliers,
    # convolutions over sampled positions; the sampling is no contraction
    "torchvision::deform_conv2d": convolution(),
    "torchvision::_deform_conv2d_backward": one_way_backward("grad"),
}
"""Operators that exist only if their library is loaded."""
