"""Why a section of a report is not there."""

from __future__ import annotations


class AbsentError(Exception):
    """The run lacks what a section shows; the message is a sentence that says what, and what would record it."""
