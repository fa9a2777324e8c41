"""What a rank of the self-test planted, measured per step with its own clocks, as a file for the launcher."""

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
"""Name of the duration of the whole step."""


class Notes:
    """Collects what one rank planted.

    Args:
        folder: Folder for the file.
        rank: Rank of this process.
        facts: What is known in advance: sizes, device, backend.
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
        """Adds time to a part of the current step."""
        self._step[name] += ns

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measures a block on the host."""
        began = time.perf_counter_ns()
        yield
        self.add(name, time.perf_counter_ns() - began)

    def end_step(self) -> None:
        """Ends the current step, as the end of optimizer.step() does for distprof."""
        now = time.perf_counter_ns()
        self.add(WHOLE, now - self._began)
        self._steps.append(dict(self._step))
        self._step.clear()
        self._began = now

    def attempt(self, name: str, do: Callable[[], Any]) -> Any:
        """Runs a part of the job; a part that fails is recorded and skipped from then on.

        Returns:
            What the part returns; None if it fails or has failed before.
        """
        if name in self._failed:
            return None
        try:
            return do()
        except Exception as error:  # noqa: BLE001 (other parts continue)
            self.fail(name, error)
            return None

    def fail(self, name: str, error: BaseException) -> None:
        """Records why a part of the job cannot be judged."""
        first = (str(error).splitlines() or [""])[0]
        self._failed[name] = f"{type(error).__name__}: {first}"

    def write(self) -> None:
        """Writes the file atomically."""
        text = json.dumps({"rank": self._rank, "facts": self.facts, "steps": self._steps, "failed": self._failed})
        partial = self._file.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self._file)


def use_loopback() -> None:
    """Makes gloo use the loopback interface; otherwise it looks up the host name, which may fail."""
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
