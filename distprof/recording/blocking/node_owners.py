"""Whose work a thread does: the module that runs, and in backward the one whose call made the node of autograd."""

from __future__ import annotations

from typing import Any

import torch

from distprof.model.call_paths import CallPath, RunningCall, mark_nodes, owner_of_running_node
from distprof.model.scopes import Frame, ModuleScopes, in_backward


class NodeOwners:
    """Marks nodes of autograd with the module calls that made them, while it listens."""

    def __init__(self, scopes: ModuleScopes) -> None:
        self._scopes = scopes
        self._outside = CallPath(None, None)

    def start(self) -> None:
        self._scopes.add(self)

    def stop(self) -> None:
        self._scopes.remove(self)

    def enter(self, frame: Frame) -> None:
        """Notes which nodes come next."""
        outer: RunningCall | None = frame.outer.data.get(self) if frame.outer is not None else None
        path = outer.path if outer is not None else self._outside
        frame.data[self] = RunningCall(path.child(frame.site), torch._C._autograd._get_sequence_nr(), outer)

    def exit(self, frame: Frame, _args: Any, _kwargs: Any, result: Any) -> None:
        """Marks those that were made since."""
        if self in frame.data:
            mark_nodes(result, frame.data[self])

    def where(self) -> tuple[str | None, str | None]:
        """Path of the module and phase of what this thread does; None for what is unknown."""
        frame = self._scopes.current
        if frame is not None:
            return frame.site.path, frame.phase
        if not in_backward():
            return None, None
        owner = owner_of_running_node()
        return owner.site.path if owner is not None and owner.site is not None else None, "backward"
