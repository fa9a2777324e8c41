"""The drop-in under the name of fvcore: `from fvcore.nn import FlopCountAnalysis`."""

from distprof.compat.fvcore import *  # noqa: F403 (all names of the drop-in)
from distprof.compat.fvcore import __all__ as __all__
