"""A drop-in replacement for fvcore's counters: the same names, numbers and text, without tracing.

    from distprof.compat.fvcore import FlopCountAnalysis, flop_count_table
"""

from distprof.compat.fvcore.analysis import (
    ActivationCountAnalysis,
    FlopCountAnalysis,
    JitModelAnalysis,
    activation_count,
    flop_count,
)
from distprof.compat.fvcore.module_sums import Handle
from distprof.compat.fvcore.tables import flop_count_str, flop_count_table, parameter_count, parameter_count_table
from distprof.peers.jit_values import get_shape

__all__ = ["ActivationCountAnalysis", "FlopCountAnalysis", "Handle", "JitModelAnalysis", "activation_count",
           "flop_count", "flop_count_str", "flop_count_table", "get_shape", "parameter_count",
           "parameter_count_table"]
