"""Phases of Chrome events, as the character codes that columns hold."""

from __future__ import annotations

import numpy as np

from distprof.arrays import Flags


def _among(letters: str) -> Flags:
    return np.isin(np.arange(256), [ord(letter) for letter in letters])


SLICE, META, BEGIN, END, ASYNC_BEGIN, ASYNC_END = (ord(letter) for letter in "XMBEbe")
FLOW_START, FLOW_STEP, FLOW_END = (ord(letter) for letter in "stf")
FLOWS = _among("stf")
"""By phase: ends of arrows."""
PAIRED = _among("BEbe")
"""By phase: slices that are written as two events, a begin and an end."""
