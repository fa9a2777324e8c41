"""The drop-in under fvcore's module name: `from fvcore.nn import FlopCountAnalysis`."""

from distprof.compat.fvcore import *  # noqa: F403 (all names of the drop-in)
from distprof.compat.fvcore import __all__ as __all__
