"""Why a section of a report is not there."""

from __future__ import annotations


class AbsentError(Exception):
    """The run lacks what a section shows; the message is a sentence that says what."""

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        """Keeps the message, and which flags of `distprof run` would record it."""
        super().__init__(what)
        self._remedy = remedy

    def sentence(self, *, recorded: bool) -> str:
        """With the remedy for a run of ours; flags do nothing for traces of other programs."""
        return f"{self}: {self._remedy}" if recorded and self._remedy is not None else str(self)
