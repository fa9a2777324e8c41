"""The errors of distprof. Each has the exit code of the command and, if there is one, a hint for the user.

    DistprofError           1
    +-- UsageError          2   wrong flags or arguments
    +-- DataError           1   a run directory that is bad or missing; 2 in `diff`, where 1 is a limit
    |   +-- FormatError     1   written by a newer distprof
    +-- OutputError         1   cannot write where asked
    +-- StorageError        1   a storage of runs does not answer, or refuses the keys
    +-- FormulaError        1   a FLOP formula that a user registered failed
    +-- ModelError          1   the user's model or its factory raised
    +-- LackingError        1   this Python lacks torch, or the system what recording needs; an ImportError as well
    +-- IncompleteError     3   done, but parts of the run are missing (only under --strict)
    +-- BeyondLimit         1   a change is beyond a limit of `diff --fail-if`
    +-- CannotTell          3   whether it is, cannot be told
    Ended             128 + n   signal n ends the process
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Numbers of an OSError that is due to a limit of this process or machine, not to the file that was to be opened."""

class DistprofError(Exception):
    """Something distprof could not do.

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
    """Something cannot be written where it was asked for."""


class StorageError(DistprofError):
    """Where runs are stored, nothing can be read or written: no answer, no keys, or keys that are refused."""


class FormulaError(DistprofError):
    """A formula given to `distprof.register_flops` raised, or returned something that is no number of FLOPs."""


class ModelError(DistprofError):
    """A model, or the factory that makes it, raised; what it raised is the cause."""


class LackingError(DistprofError, ImportError):
    """What was asked for needs torch, which is not there or cannot be used, or another system.

    Args:
        purpose: What was asked for, like "record".
        why: What is wrong, like "no torch".
        hint: What the user can do about it.
    """

    def __init__(self, purpose: str, why: str, *, hint: str) -> None:
        super().__init__(f"cannot {purpose}: {why}", hint=hint)
        self.why = why


class IncompleteError(DistprofError):
    """The work is done, but parts of the run are missing; raised under --strict only."""

    exit_code = 3


class BeyondLimit(DistprofError):
    """A change is beyond a limit of `--fail-if`."""


class CannotTell(DistprofError):
    """Nobody can tell whether a change is beyond a limit of `--fail-if`."""

    exit_code = 3


class Ended(BaseException):
    """A signal ends the process: one that asks it to, or SIGPIPE where nobody reads its output any more.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def in_one_line(error: BaseException) -> str:
    """Type and first line of any error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def one_of(name: str, names: Sequence[str], option: str) -> str:
    """The name that a user gave an option, which takes these.

    Raises:
        UsageError: It is none of them.
    """
    if name not in names:
        from difflib import get_close_matches  # takes a while

        near = get_close_matches(name, names, n=3)
        raise UsageError(f"unknown value {name!r} for {option}; choose from {', '.join(names)}",
                         hint=f"did you mean {' or '.join(near)}?" if near else None)
    return name
