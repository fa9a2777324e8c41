"""DeepSpeed's flops profiler as a drop-in: the same names, arguments and report, counted by distprof.

    from distprof.compat.deepspeed import FlopsProfiler, get_model_profile
"""

from distprof.compat.deepspeed.profiler import *  # noqa: F403
from distprof.compat.deepspeed.profiler import __all__ as __all__
