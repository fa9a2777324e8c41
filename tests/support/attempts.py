"""Repeats tests that may fail on a busy machine, and judges them by the number of attempts that hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def most_hold(attempt: Callable[[Path], object], folder: Path, *, of: int, at_least: int) -> None:
    """Calls `attempt` `of` times with a new folder each; an attempt does not hold if it raises an AssertionError."""
    failures = []
    for number in range(of):
        path = folder / f"attempt{number}"
        path.mkdir()
        try:
            attempt(path)
        except AssertionError as error:
            failures.append(f"attempt {number}: {error}")
    print(f"{of - len(failures)} of {of} hold, {at_least} have to")
    assert of - len(failures) >= at_least, "\n".join(failures)
