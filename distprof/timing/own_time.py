"""The time that instruments take amid what they time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


class OwnTime:
    """A clock of the host that stands still while instruments work on a thread; `clock` is one that goes on."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._spent_ns = self._began_ns = 0
        self._works = False

    def begin(self) -> None:
        """An instrument begins to work."""
        self._began_ns, self._works = self.clock(), True

    def end(self) -> None:
        """The program goes on."""
        self._works = False
        self._spent_ns += self.clock() - self._began_ns

    def now_ns(self) -> int:
        """The time of the program, from an arbitrary origin."""
        return (self._began_ns if self._works else self.clock()) - self._spent_ns

    def left_out(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function, as work of an instrument."""
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            self.begin()
            try:
                function(*args, **kwargs)
            finally:
                self.end()

        return call
