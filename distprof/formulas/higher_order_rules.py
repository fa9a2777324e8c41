"""Lets modes get higher-order operators where torch calls only modes that have a rule for the operator.

Newer modes state that they take them all (`supports_higher_order_operators`). In a torch without that statement (2.8 is
one) the call of an operator raises in the script, unless the operator knows a rule for this class of modes.
"""

from __future__ import annotations

import threading
from typing import Any

from torch._ops import HigherOrderOperator, _higher_order_ops
from torch.utils._python_dispatch import TorchDispatchMode

TAKE_ALL = hasattr(TorchDispatchMode, "supports_higher_order_operators")
"""True where a mode gets every higher-order operator because it says so."""

_lock = threading.Lock()
_modes: set[TorchDispatchMode] = set()
"""The modes that are on."""
_plain_init: Any = HigherOrderOperator.__init__


def admit(mode: TorchDispatchMode) -> None:
    """Gives all operators a rule for the mode, also those that are made (imported) until `dismiss`."""
    if TAKE_ALL:
        return
    with _lock:
        _modes.add(mode)
        HigherOrderOperator.__init__ = _init_with_rules  # type: ignore[assignment, method-assign]
        for operator in list(_higher_order_ops.values()):
            _add_rule(operator, type(mode))


def dismiss(mode: TorchDispatchMode) -> None:
    """Operators that are made from now on get no rule for the mode; a rule without its mode is never looked at."""
    with _lock:
        _modes.discard(mode)
        if not _modes and HigherOrderOperator.__init__ is _init_with_rules:
            HigherOrderOperator.__init__ = _plain_init  # type: ignore[method-assign]


def _init_with_rules(operator: Any, *args: Any, **kwargs: Any) -> None:
    _plain_init(operator, *args, **kwargs)
    for kind in {type(mode) for mode in _modes.copy()}:
        _add_rule(operator, kind)


def _add_rule(operator: Any, kind: type[TorchDispatchMode]) -> None:
    def rule(mode: Any, *args: Any, **kwargs: Any) -> Any:
        return mode.__torch_dispatch__(operator, (), args, kwargs)

    operator.python_key_table.setdefault(kind, rule)
