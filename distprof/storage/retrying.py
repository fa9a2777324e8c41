"""Tries requests again for as long as a storage is busy or the network broken, within a limit."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from distprof.storage.faults import Kind, fault_of, raised
from distprof.terminal import say

Result = TypeVar("Result")
PATIENCE_S = 60.0
"""How long the same request is tried; `VARIABLE` says otherwise."""
VARIABLE = "DISTPROF_STORAGE_PATIENCE"
FIRST_S, LONGEST_S = 0.1, 8.0
"""Pauses: each is twice as long as the one before."""
LONG_S = 3.0
"""What takes longer is said."""


def persistently(place: str, work: Callable[[], Result]) -> Result:
    """What the work gives, once it succeeds.

    Args:
        place: A URL, for messages.
        work: May be called several times.

    Raises:
        StorageError: The storage refuses the keys, or did not answer in time.
        RemoteError: The object cannot be had.
    """
    began, pause, told = time.monotonic(), FIRST_S, False
    while True:
        try:
            return work()
        except Exception as error:
            fault = fault_of(error)
            passed = time.monotonic() - began
            if fault.kind is not Kind.AGAIN or passed + pause > patience_s():
                raise raised(error, place) from error
            if passed > LONG_S and not told:
                told = True
                say(f"{place}: {fault.what}; trying for up to {patience_s():g} s")
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_S)


def patience_s() -> float:
    """The limit that is set."""
    try:
        return max(float(os.environ.get(VARIABLE, PATIENCE_S)), 0.0)
    except ValueError:
        return PATIENCE_S
