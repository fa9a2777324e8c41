"""Worker processes of a DataLoader, which make batches ahead of the thread that takes them."""

from __future__ import annotations

from support.simulator.program import Fetch


class Loader:
    """Worker n makes batches n, n + workers, ...; as many are ordered ahead as all workers may hold."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self._made: list[int] = []

    def fetch(self, fetch: Fetch, now: int) -> int:
        """When the thread has the next batch."""
        number, ahead = len(self._taken), fetch.workers * fetch.prefetch
        # that a batch is taken orders another; at the start all are ordered at once
        ordered = self._taken[number - ahead] if number >= ahead else self._taken[0] if number else now
        free = self._made[number - fetch.workers] if number >= fetch.workers else 0
        self._made.append(max(ordered, free) + fetch.ns)
        self._taken.append(max(now, self._made[-1]))
        return self._taken[-1]
