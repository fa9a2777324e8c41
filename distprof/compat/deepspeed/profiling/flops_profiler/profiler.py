"""The same names in the module in which DeepSpeed defines them."""

from distprof.compat.deepspeed import *  # noqa: F403 (all names of the drop-in)
from distprof.compat.deepspeed import __all__ as __all__
