"""Warnings of torch that are about us, not about the script."""

from __future__ import annotations

import re
import warnings
from typing import Any


class QuietAbout:
    """Keeps one warning from being shown, or raised, between `start` and `stop`."""

    def __init__(self, words: str) -> None:
        """For the UserWarning whose text begins with what this regular expression matches."""
        # as the list of filters has it; the functions that change the list would let old warnings show again
        self.filter = ("ignore", re.compile(words), UserWarning, None, 0)

    def start(self) -> None:
        filters: Any = warnings.filters
        filters.insert(0, self.filter)

    def stop(self) -> None:
        """Leaves it to the filters of the script again."""
        filters: Any = warnings.filters
        filters[:] = [entry for entry in filters if entry is not self.filter]
