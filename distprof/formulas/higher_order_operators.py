"""Makes the operators inside higher-order operators visible to a dispatch mode.

cond, while_loop, scan, map, checkpoint and the like reach a mode as one call, which hides the functions that they run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def run_functions_under(mode: TorchDispatchMode, given: Any) -> Any:
    """Wraps the functions among the arguments of a higher-order operator so that they run under the mode.

    Args:
        mode: The mode whose `__torch_dispatch__` got the operator; torch has switched it off meanwhile.
        given: `args` or `kwargs` of the call.
    """
    if isinstance(given, dict):
        return {name: run_functions_under(mode, value) for name, value in given.items()}
    if isinstance(given, (list, tuple)) and type(given) in (list, tuple):
        return type(given)(run_functions_under(mode, value) for value in given)
    if callable(given) and not isinstance(given, (torch.Tensor, type)):
        return _entered(mode, given)
    return given


def _entered(mode: TorchDispatchMode, function: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return run
