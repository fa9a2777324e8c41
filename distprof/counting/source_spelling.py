"""How the source code spells a call of a torch function, where the function's name hides it.

Other counters treat `a + b` and `a.add(b)` differently; torch reports both as `torch.Tensor.add`.
"""

from __future__ import annotations

import types
from functools import lru_cache
from opcode import opname

OPERATOR = "operator"
OPERATORS = frozenset({"torch.Tensor.add", "torch.Tensor.mul"})
"""Methods that torch also reports for the operators + and *."""
WRAPPERS = {
    "torch.nn.functional.interpolate": ("torch.nn.functional", "upsample"),
    "torch.functional.einsum": ("einops.einops", "einsum"),
}
"""Function -> a caller of it that torch does not report."""
BETWEEN = ("torch.overrides", "torch.functional", "torch.nn.functional", "einops._backends",
           "distprof.counting.torch_functions", "contextlib")


def spelling(name: str, frame: types.FrameType | None) -> str:
    """`operator`, the wrapper that was called, or '' if the name is exact.

    Args:
        name: Qualified name of the function.
        frame: The calling frame.
    """
    if frame is None:
        return ""
    if name in OPERATORS:
        return OPERATOR if _is_operator(name.rpartition(".")[2], frame.f_code, frame.f_lasti) else ""
    return _wrapper(WRAPPERS[name], frame) if name in WRAPPERS else ""


@lru_cache(maxsize=4096)
def _is_operator(method: str, code: types.CodeType, at: int) -> bool:
    # sum() and the like use the operator from C; only code that calls the method contains its name
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
