"""What was freed goes back to the system, and the garbage collector stays away from what has no garbage.

Without the first a merge takes more memory with each rank that it has done.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from distprof.system import c_function

Item = TypeVar("Item")
OFTEN = 32


def give_back() -> None:
    """Does nothing where the C library is not glibc. It sets no options: notebooks read runs as well."""
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)


def giving_back(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; what was freed goes back each time that so many are done."""
    for number, item in enumerate(items, 1):
        yield item
        if number % OFTEN == 0:
            give_back()


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector from looking at what is made in here, again and again.

    For millions of objects without cycles; they are freed as ever.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
