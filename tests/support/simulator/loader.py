"""Worker processes of a DataLoader, which make batches ahead of the thread that takes them."""

from __future__ import annotations

from support.simulator.program import Fetch


class Loader:
    """Worker n makes batches n, n + workers, ...; as many are ordered ahead as all workers may hold."""

    def __init__(self) -> None:
        self._began = 0
        """When the first batch was asked for, and as many ordered as may be."""
        self._taken: list[int] = []
        self._made: list[int] = []

    def fetch(self, fetch: Fetch, now: int) -> int:
        """When the thread has the next batch."""
        number, ahead = len(self._taken), fetch.workers * fetch.prefetch
        self._began = self._began if number else now
        # that a batch is taken orders another
        ordered = self._taken[number - ahead] if number >= ahead else self._began
        free = self._made[number - fetch.workers] if number >= fetch.workers else 0
        self._made.append(max(ordered, free) + fetch.ns)
        self._taken.append(max(now, self._made[-1]))
        return self._taken[-1]
