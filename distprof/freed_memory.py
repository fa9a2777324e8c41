"""Returns freed memory to the system, and suspends the garbage collector where there is no garbage.

Without the former, the memory of a merge would grow with each processed rank.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from distprof.system import c_function

Item = TypeVar("Item")
OFTEN = 32
"""Memory is returned after this many items."""


def give_back() -> None:
    """Returns freed memory to the system, if the C library is glibc. Changes no settings of the process, because
    notebooks also read runs."""
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)


def giving_back(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items; returns freed memory to the system after every `OFTEN` items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % OFTEN == 0:
            give_back()


@contextmanager
def uncollected() -> Iterator[None]:
    """Disables the cyclic garbage collector in the block.

    For creating millions of objects without cycles, which are still freed by reference counting.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
