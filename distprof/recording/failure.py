"""A failure of the recording in words for the user."""

from __future__ import annotations

import os

from distprof.errors import DistprofError
from distprof.files import hint_of


def in_words(error: Exception) -> tuple[str, str | None]:
    """What failed, in a line, and what the user can do about it."""
    if isinstance(error, DistprofError):
        return str(error.args[0]), error.hint
    if isinstance(error, OSError) and error.errno:
        place = f": {error.filename}" if error.filename is not None else ""
        return f"{os.strerror(error.errno)}{place}", hint_of(error)
    return f"{type(error).__name__}: {error}", None
