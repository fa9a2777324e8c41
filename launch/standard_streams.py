"""Handles standard streams that the caller closed, and draws a progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def open_standard_streams() -> None:
    """Opens /dev/null in place of each closed standard stream.

    Otherwise the next opened file would get its descriptor, and messages of libraries would be written to that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free descriptor, which is number
    null = Path(os.devnull)
    if sys.stdin is None:
        sys.stdin = null.open()
    if sys.stdout is None:
        sys.stdout = null.open("w")
    if sys.stderr is None:
        sys.stderr = null.open("w")


def tell_errors_once() -> None:
    """Suppresses unraisable OSErrors, such as from closing a file during cleanup; the original error is reported."""
    def hook(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(found.exc_value, OSError):
            sys.__unraisablehook__(found)

    sys.unraisablehook = hook


def close_standard_output() -> bool:
    """Flushes standard output, because errors cannot be reported when the interpreter shuts down.

    Returns:
        False if something could not be written.
    """
    try:
        sys.stdout.flush()
        return True
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        return False


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """Yields a function that takes the completed fraction, from 0 to 1; draws on stderr if that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # takes a while to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
