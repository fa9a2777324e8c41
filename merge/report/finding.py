"""One finding of a report: a sentence with the section that has its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MORE_LOADERS = "Load data in more worker processes, or ahead of the step."
Severity = Literal["bad", "warn", "note", "good"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence of the first screen."""

    severity: Severity
    text: str
    section: str
    """Key of the document."""
    detail: str | None = None
    """What else is known of it."""
    rank: int | None = None
    step: int | None = None
    module: str | None = None
    action: str | None = None
    """What usually helps."""
    next: str | None = None
    """The command that shows more."""
    view: str | None = None
    """The command that opens the trace there."""
    id: str | None = None
    """Of a finding of the watch."""
