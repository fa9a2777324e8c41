"""A drop-in replacement for DeepSpeed's flops profiler: the same names, arguments and report, counted by distprof.

    from distprof.compat.deepspeed import FlopsProfiler, get_model_profile
"""

from distprof.compat.deepspeed.measurement import get_module_duration, get_module_flops, get_module_macs
from distprof.compat.deepspeed.model_profile import get_model_profile
from distprof.compat.deepspeed.profiler import FlopsProfiler
from distprof.reporters.deepspeed_layout import (
    DEFAULT_PRECISION,
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)

__all__ = [
    "DEFAULT_PRECISION", "FlopsProfiler", "bytes_to_string", "duration_to_string", "flops_to_string",
    "get_model_profile", "get_module_duration", "get_module_flops", "get_module_macs", "macs_to_string",
    "number_to_string", "params_to_string",
]
