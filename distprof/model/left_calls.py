"""Work of a module's call that runs when the call seems over: its own forward hooks, and a forward that is a generator.

torch calls global hooks in front of those of a module, and a generator runs when its results are asked for.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

from distprof.model.scopes import Frame

FORWARD = "forward"
sequence_number = torch._C._autograd._get_sequence_nr
CALL = nn.Module._call_impl.__code__


class LeftCalls:
    """The outermost calls of a step that have returned."""

    def __init__(self) -> None:
        self._by_module: dict[int, Frame] = {}
        """By id of the module, which the frame keeps alive."""
        self._nodes: dict[int, Frame] = {}
        """Sequence number of an autograd node that is made when the call is over -> the call."""

    def left(self, frame: Frame) -> None:
        """An outermost call has returned."""
        self._by_module[id(frame.module)] = frame

    def clear(self) -> None:
        """Forgets all."""
        self._by_module.clear()
        self._nodes.clear()

    def running(self) -> Frame | None:
        """The call whose hook or generator runs on this thread; None where only the script does."""
        frame: FrameType | None = sys._getframe(1) if self._by_module else None
        while frame is not None:
            code = frame.f_code
            if (code is CALL or code.co_name == FORWARD) and code.co_argcount:
                found = self._by_module.get(id(frame.f_locals.get(code.co_varnames[0])))
                if found is not None:
                    self._nodes[sequence_number() - 1] = found  # the node of an operator is there before it runs
                    return found
            frame = frame.f_back
        return None

    def maker_of_running_node(self) -> Frame | None:
        """The call in whose hook or generator the autograd node was made that runs on this thread."""
        node: Any = torch._C._current_autograd_node() if self._nodes else None
        return self._nodes.get(node._sequence_nr()) if node is not None else None
