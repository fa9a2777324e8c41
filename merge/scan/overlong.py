"""Slices of devices with times that cannot be.

ROCm records kernels as lasting far into those behind them, which one stream runs one after the other: TraceLens
issue 669 has a kernel of 1.6 s on a stream of 2 ms. CUPTI may note 0 as the start and the end of a kernel that it has
no times of (pytorch/kineto issue 109), or an end before the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from distprof.arrays import Array, Flags, Integers

_OF_HIP = re.compile(r"hip[A-Z]")
ON_DEVICE = (b"kernel", b"gpu_memcpy", b"gpu_memset", b"memcpy", b"memset")
"""Categories of what a stream does, in lower case."""


DAY_NS = 86_400_000_000_000
"""So much earlier than most others, nothing runs in one recording."""


def untimed(start: Integers, duration: Integers) -> Flags:
    """Which slices of devices have no times: they end before they begin, or begin in another age.

    Args:
        start: When each began, int64 ns.
        duration: How long it took, in ns.
    """
    return (duration < 0) | (start < (np.median(start) if len(start) else 0) - DAY_NS)


def has_overlong(calls: Iterable[str]) -> bool:
    """Whether a trace may have such kernels, by the names of calls of a runtime: those of CUDA overlap on purpose."""
    return any(map(_OF_HIP.match, calls))


def cut_overlong(stream: Array, start: Integers, duration: Integers) -> tuple[Integers, Integers]:
    """Cuts what is still there when a second one behind it begins, or has ended where there is no second one.

    Args:
        stream: Number of the stream of each slice.
        start: When it began, int64; any order.
        duration: How long it took, in the same unit.

    Returns:
        Durations of which those are up to the start of the next one on the stream; and the places of these.
    """
    order = np.lexsort((start, stream))
    stream, begin, end = stream[order], start[order], (start + duration)[order]
    follows = stream[1:] == stream[:-1]
    # what begins with another one at the same time shows nothing
    limit = np.full(len(order), np.iinfo(np.int64).max)
    limit[:-1][follows] = end[1:][follows]
    limit[:-2][stream[2:] == stream[:-2]] = begin[2:][stream[2:] == stream[:-2]]
    following = np.append(begin[1:], 0)
    is_over = (end > limit) & (following > begin)
    found = duration.copy()
    found[order[is_over]] = (following - begin)[is_over]
    return found, order[is_over]
