"""The drop-in under DeepSpeed's module name: `from deepspeed.profiling.flops_profiler import FlopsProfiler`."""

from distprof.compat.deepspeed import *  # noqa: F403 (all names of the drop-in)
from distprof.compat.deepspeed import __all__ as __all__
