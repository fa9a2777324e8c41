"""fvcore's counters of flops, activations and parameters as a drop-in: the same names, numbers and text, no tracing.

    from distprof.compat.fvcore import FlopCountAnalysis, flop_count_table
"""

from distprof.compat.fvcore.analysis import JitModelAnalysis
from distprof.compat.fvcore.counters import ActivationCountAnalysis, FlopCountAnalysis, activation_count, flop_count
from distprof.compat.fvcore.flop_table import flop_count_table
from distprof.compat.fvcore.handles import Handle, get_shape
from distprof.compat.fvcore.model_text import flop_count_str
from distprof.compat.fvcore.parameters import parameter_count, parameter_count_table

__all__ = ["ActivationCountAnalysis", "FlopCountAnalysis", "Handle", "JitModelAnalysis", "activation_count",
           "flop_count", "flop_count_str", "flop_count_table", "get_shape", "parameter_count",
           "parameter_count_table"]
