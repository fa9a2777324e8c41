"""The exception that ends a script, in a line: what it is, what it says, and where in the script it was raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from distprof.contract.stuck import in_brief

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def in_a_line(error: BaseException) -> str:
    """`ValueError in the script: bad sample 17 (train.py:9)`."""
    message, place = _message(error), _place(error)
    said = f": {message}" if message else ""
    return f"{type(error).__name__} in the script{said}{f' ({place})' if place else ''}"


def _message(error: BaseException) -> str:
    try:
        return in_brief(str(error))
    except Exception as own:  # noqa: BLE001 (a __str__ of the script)
        return f"without a message: str() raised {type(own).__name__}"


def _place(error: BaseException) -> str | None:
    """The innermost line that is not of a library, nor ours."""
    own = str(Path(__file__).parents[1])
    found = [one for one in traceback.extract_tb(error.__traceback__)
             if not one.filename.startswith((*_LIBRARIES, own, "<frozen"))]
    return f"{Path(found[-1].filename).name}:{found[-1].lineno}" if found else None
