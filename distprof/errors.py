"""The errors of distprof. Each has the exit code of the command and, if there is one, a hint for the user.

    DistprofError           1
    +-- UsageError          2   wrong flags or arguments
    +-- DataError           1   a bad or missing run directory; 2 in `diff`, where 1 means an exceeded limit
    |   +-- FormatError     1   written by a newer distprof
    +-- OutputError         1   cannot write to the requested place
    +-- StorageError        1   an object storage does not answer, or rejects the credentials
    +-- FormulaError        1   a FLOP formula that a user registered failed
    +-- ModelError          1   the user's model or its factory raised
    +-- LackingError        1   torch, or a feature of the system, is missing; also an ImportError
    +-- IncompleteError     3   done, but parts of the run are missing (only with --strict)
    +-- BeyondLimit         1   a change exceeds a limit of `diff --fail-if`
    +-- CannotTell          3   it is unknown whether a change exceeds a limit
    Ended             128 + n   signal n ends the process
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Values of errno for errors caused by a limit of the process or machine, not by the file."""

class DistprofError(Exception):
    """An error that distprof reports to the user.

    Args:
        message: What was expected, what was found and where, in one line.
        hint: What the user can do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message}  hint: {self.hint}" if self.hint else message


class UsageError(DistprofError):
    """The command line is wrong."""

    exit_code = 2


class DataError(DistprofError):
    """A run directory or one of its files is bad or missing."""


class FormatError(DataError):
    """A file has a format that this version cannot read."""


class OutputError(DistprofError):
    """Something cannot be written to the requested place."""


class StorageError(DistprofError):
    """An object storage cannot be read or written: no answer, no credentials, or rejected credentials."""


class FormulaError(DistprofError):
    """A formula given to `distprof.register_flops` raised, or did not return a number of FLOPs."""


class ModelError(DistprofError):
    """A model or its factory raised; the exception is the `__cause__`."""


class LackingError(DistprofError, ImportError):
    """A request needs torch, which is missing or unusable, or another system.

    Args:
        purpose: What was requested, such as "record".
        why: What is wrong, such as "no torch".
        hint: What the user can do about it.
    """

    def __init__(self, purpose: str, why: str, *, hint: str) -> None:
        super().__init__(f"cannot {purpose}: {why}", hint=hint)
        self.why = why


class IncompleteError(DistprofError):
    """The work is done, but parts of the run are missing; only raised with --strict."""

    exit_code = 3


class BeyondLimit(DistprofError):
    """A change exceeds a limit of `--fail-if`."""


class CannotTell(DistprofError):
    """It is unknown whether a change exceeds a limit of `--fail-if`."""

    exit_code = 3


class Ended(BaseException):
    """A signal ends the process: one of `SIGNALS`, or SIGPIPE if the reader of its output is gone.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def in_one_line(error: BaseException) -> str:
    """Returns the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def one_of(name: str, names: Sequence[str], option: str) -> str:
    """Returns `name`, the value of an option, if it is one of `names`.

    Raises:
        UsageError: It is not one of them.
    """
    if name not in names:
        from difflib import get_close_matches  # takes a while

        near = get_close_matches(name, names, n=3)
        raise UsageError(f"unknown value {name!r} for {option}; choose from {', '.join(names)}",
                         hint=f"did you mean {' or '.join(near)}?" if near else None)
    return name
