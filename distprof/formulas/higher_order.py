"""Higher-order operators that run functions: makes the operators inside visible to a dispatch mode.

cond, while_loop, scan, map, checkpoint and the like reach a mode as one call, and what they run is hidden from it.
Their arguments come in; the same with every function wrapped so that it runs under the mode go out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def under(mode: TorchDispatchMode, given: Any) -> Any:
    """Arguments of a higher-order operator, with the functions among them run under the mode.

    Args:
        mode: The mode whose `__torch_dispatch__` got the operator, and which is off meanwhile.
        given: `args` or `kwargs` of the call.
    """
    if isinstance(given, dict):
        return {name: under(mode, value) for name, value in given.items()}
    if isinstance(given, (list, tuple)) and type(given) in (list, tuple):
        return type(given)(under(mode, value) for value in given)
    if callable(given) and not isinstance(given, (torch.Tensor, type)):
        return _entered(mode, given)
    return given


def _entered(mode: TorchDispatchMode, function: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return run
