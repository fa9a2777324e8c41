"""What a rank of the self-test plants, by its own clocks, step by step: a file for the launcher to compare with."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WHOLE = "step"
"""The name under which the time of whole steps is noted."""


class Notes:
    """What one rank planted.

    Args:
        folder: Where the file is written.
        rank: Of this process.
        facts: What is known beforehand: sizes, device, backend.
    """

    def __init__(self, folder: Path, rank: int, facts: dict[str, Any]) -> None:
        self.facts = facts
        self._file = folder / f"planted{rank:05d}.json"
        self._rank = rank
        self._steps: list[dict[str, float]] = []
        self._step: defaultdict[str, float] = defaultdict(float)
        self._failed: dict[str, str] = {}
        self._began = time.perf_counter_ns()

    def add(self, name: str, ns: float) -> None:
        """Notes time of the running step."""
        self._step[name] += ns

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Notes what the block takes on the host."""
        began = time.perf_counter_ns()
        yield
        self.add(name, time.perf_counter_ns() - began)

    def end_step(self) -> None:
        """Ends the running step, as the end of optimizer.step() does for distprof."""
        now = time.perf_counter_ns()
        self.add(WHOLE, now - self._began)
        self._steps.append(dict(self._step))
        self._step.clear()
        self._began = now

    def of_step(self, step: int, name: str, ns: float) -> None:
        """Notes time of a step that is over, as what events of a device say is known later."""
        self._steps[step][name] = self._steps[step].get(name, 0.0) + ns

    def attempt(self, name: str, do: Callable[[], Any]) -> Any:
        """Does one part of the job; one that fails is noted and left out from then on.

        Returns:
            What it returns; None where it fails, or has failed before.
        """
        if name in self._failed:
            return None
        try:
            return do()
        except Exception as error:  # noqa: BLE001 (the other parts go on)
            self.fail(name, error)
            return None

    def fail(self, name: str, error: BaseException) -> None:
        """Notes why one part of the job cannot be judged."""
        first = (str(error).splitlines() or [""])[0]
        self._failed[name] = f"{type(error).__name__}: {first}"

    def write(self) -> None:
        """Writes the file, at once or not at all."""
        text = json.dumps({"rank": self._rank, "facts": self.facts, "steps": self._steps, "failed": self._failed})
        partial = self._file.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self._file)


def use_loopback() -> None:
    """Gloo looks the name of the host up otherwise, which may fail."""
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
