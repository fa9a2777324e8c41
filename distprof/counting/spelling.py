"""How a torch function call is written: the calling frame comes in, what the name of the function hides goes out."""

from __future__ import annotations

import types
from functools import lru_cache
from opcode import opname

OPERATOR = "operator"
OPERATORS = frozenset({"torch.Tensor.add", "torch.Tensor.mul"})
"""Methods that torch reports for the operators + and * as well."""
WRAPPERS = {
    "torch.nn.functional.interpolate": ("torch.nn.functional", "upsample"),
    "torch.functional.einsum": ("einops.einops", "einsum"),
}
"""Function -> one that calls it and that torch does not report."""
BETWEEN = ("torch.overrides", "torch.functional", "torch.nn.functional", "einops._backends",
           "distprof.counting.functions", "contextlib")


def spelling(name: str, frame: types.FrameType | None) -> str:
    """`operator`, the wrapper that was called instead, or '' where the name says all.

    Args:
        name: Qualified name of the function.
        frame: The frame that called it.
    """
    if frame is None:
        return ""
    if name in OPERATORS:
        return OPERATOR if _is_operator(name.rpartition(".")[2], frame.f_code, frame.f_lasti) else ""
    return _wrapper(WRAPPERS[name], frame) if name in WRAPPERS else ""


@lru_cache(maxsize=4096)
def _is_operator(method: str, code: types.CodeType, at: int) -> bool:
    # sum() and the like call the operator from C: a frame that calls the method has its name
    return method not in code.co_names or opname[code.co_code[at]].startswith(("BINARY_", "INPLACE_"))


def _wrapper(wrapper: tuple[str, str], frame: types.FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if (module, frame.f_code.co_name) == wrapper:
            return ".".join(wrapper)
        if module not in BETWEEN:
            return ""
        frame = frame.f_back
    return ""
