"""Detects when the script's own torch.profiler begins and ends.

A session of ours would take its events, and our instruments would appear in its timeline.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

_ours: list[None] = []
"""Has an entry while a session of ours begins."""


@contextmanager
def our_session() -> Iterator[None]:
    """Marks a session that begins inside as ours."""
    _ours.append(None)
    try:
        yield
    finally:
        _ours.pop()


class ForeignProfiler:
    """Observes sessions that are not ours, from `start` until `stop`."""

    def __init__(self, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        """Stores callbacks; `begins` is called before a session of the script prepares, `ends` after it has ended."""
        self._begins = begins
        self._ends = ends
        self._own: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._methods: dict[str, tuple[Any, Any]] = {}
        """Name -> the method as it was, and ours; empty before `start` and after `stop`."""

    def is_active(self) -> bool:
        """True from before a session of the script prepares until it has ended."""
        if self._sessions:
            return True
        # a session that began before `start`
        return not self._own and bool(torch._C._autograd._profiler_enabled())

    def start(self) -> None:
        """Wraps the methods with which sessions begin and end."""
        kind: Any = autograd_profiler.profile
        prepare, leave = kind._prepare_trace, kind.__exit__

        @wraps(prepare)
        def prepare_theirs(session: object) -> Any:
            if _ours:
                self._own.add(session)
            elif self._methods:
                self._sessions.add(session)
                self._begins()
            return prepare(session)

        @wraps(leave)
        def leave_theirs(session: object, *error: Any) -> Any:
            try:
                return leave(session, *error)
            finally:
                self._own.discard(session)
                if session in self._sessions:
                    self._sessions.discard(session)
                    if self._methods:
                        self._ends()

        self._methods = {"_prepare_trace": (prepare, prepare_theirs), "__exit__": (leave, leave_theirs)}
        kind._prepare_trace, kind.__exit__ = prepare_theirs, leave_theirs

    def stop(self) -> None:
        """Restores each method, unless somebody has wrapped it again; then ours does nothing any more."""
        kind: Any = autograd_profiler.profile
        for name, (original, patched) in self._methods.items():
            if getattr(kind, name) is patched:
                setattr(kind, name, original)
        self._methods = {}
