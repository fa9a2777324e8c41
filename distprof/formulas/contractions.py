"""The operators whose multiply-accumulates (MACs) are counted exactly."""

from __future__ import annotations

from distprof.formulas.attention import FLEX, PACKED_ATTENTION
from distprof.formulas.quantized import QUANTIZED
from distprof.formulas.third_party import THIRD_PARTY
from distprof.shape_formulas.attention import ATTENTION
from distprof.shape_formulas.convolution import CONVOLUTION
from distprof.shape_formulas.matmul import MATMUL, NESTED_MATMUL, RECURRENT
from distprof.shape_formulas.operator_call import MacsFormula

MACS: dict[str, MacsFormula] = {
    **MATMUL, **CONVOLUTION, **ATTENTION, **PACKED_ATTENTION, **FLEX, **RECURRENT, **QUANTIZED, **THIRD_PARTY,
}
"""Qualified name of an operator (all overloads) -> MACs of one call."""

LOOK_AT_VALUES = frozenset((*PACKED_ATTENTION, *FLEX, *THIRD_PARTY, *NESTED_MATMUL))
"""Operators whose formulas may read lengths of sequences from tensors."""
