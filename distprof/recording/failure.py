"""Describes a failure in one line: of the recording, or the exception that ends a script and where it was raised."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from distprof.contract.rank_json import RankFailure
from distprof.contract.stuck import in_brief
from distprof.errors import DistprofError
from distprof.files import hint_of
from distprof.own import time
from distprof.recording.hang.report import is_communication, message_of


def in_words(error: Exception) -> tuple[str, str | None]:
    """Returns what failed, in one line, and a hint for the user."""
    if isinstance(error, DistprofError):
        return str(error.args[0]), error.hint
    if isinstance(error, OSError) and error.errno:
        place = f": {error.filename}" if error.filename is not None else ""
        return f"{os.strerror(error.errno)}{place}", hint_of(error)
    return f"{type(error).__name__}: {error}", None


MOST_CAUSES = 20
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def failure_of(error: BaseException | None) -> RankFailure | None:
    """Returns the entry for rank.json; None for an end without failure, and for Ctrl-C, which all ranks receive."""
    if error is None or isinstance(error, KeyboardInterrupt | GeneratorExit):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    try:
        of_communication = any(map(is_communication, _with_causes(error)))
    except Exception:  # noqa: BLE001 (a __str__ of the script)
        of_communication = False
    return RankFailure(what=in_a_line(error), at_ns=time.time_ns(), of_communication=of_communication)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception and its explicit causes; `__context__` may be unrelated."""
    seen: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__


def in_a_line(error: BaseException) -> str:
    """Returns a line such as `ValueError in the script: bad sample 17 (train.py:9)`."""
    message, place = _message(error), _place(error)
    said = f": {message}" if message else ""
    return f"{type(error).__name__} in the script{said}{f' ({place})' if place else ''}"


def _message(error: BaseException) -> str:
    try:
        return in_brief(message_of(error))
    except Exception as own:  # noqa: BLE001 (a __str__ of the script)
        return f"without a message: str() raised {type(own).__name__}"


def _place(error: BaseException) -> str | None:
    """Returns the innermost line that is neither of a library nor of distprof."""
    own = str(Path(__file__).parents[1])
    found = [one for one in traceback.extract_tb(error.__traceback__)
             if not one.filename.startswith((*_LIBRARIES, own, "<frozen"))]
    return f"{Path(found[-1].filename).name}:{found[-1].lineno}" if found else None
