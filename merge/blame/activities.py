"""Activities of ranks: forward of a module, loading data, the optimizer, and a number for each."""

from __future__ import annotations

from typing import Any, NamedTuple


class Activity(NamedTuple):
    """What a rank does."""

    kind: str
    """forward, backward, recompute, data, optimizer, host, communication, or annotation of the script."""
    where: str | None = None
    """Module path; name of an annotation; for the host what it lies between. None where that is not known."""


class Activities:
    """Activities by number; numbers below 0 are waits for a collective."""

    def __init__(self) -> None:
        self.known: list[Activity] = []
        self._numbers: dict[Activity, int] = {}

    def number(self, activity: Activity) -> int:
        """Of this activity, the same each time."""
        number = self._numbers.setdefault(activity, len(self.known))
        if number == len(self.known):
            self.known.append(activity)
        return number

    @staticmethod
    def waiting_for(collective: Any) -> Any:
        """The number that stands for waiting in a collective, and the other way round."""
        return -1 - collective
