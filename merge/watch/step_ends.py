"""`step_ends.bin` of older runs, which had only the ends of steps behind the last pass, as the columns of today.

64-bit integers in the byte order of the machine: `MAGIC`, the number of the first of these steps, when it began, when
it ended, when the next one ended, and so on; ns since the epoch, the clock of the rank.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from distprof.contract.watch import UNKNOWN, StepRows
from distprof.errors import DataError
from distprof.files import read_small
from distprof.merge.watch.pieces import Columns

STEP_ENDS = "step_ends.bin"
MAGIC = int.from_bytes(b"distprof"[:7], "little")
MOST_SPAN_NS = 366 * 86_400 * 10**9
"""Longer than any step; what jumps farther is damage."""
MOST_BYTES = 1 << 28
"""Of one rank: more are not read."""


def old_columns(folder: Path) -> Columns | None:
    """A row for each step of a rank; None where there is no such file, or no step in it has ended.

    Args:
        folder: Of the rank.
    """
    try:
        found = step_ends(read_small(folder / STEP_ENDS, MOST_BYTES))
    except (OSError, DataError):
        return None
    if found is None:
        return None
    first, times = found
    ends = np.array(times, np.int64)
    columns = {name: np.full(len(ends) - 1, UNKNOWN, np.int64) for name in StepRows.__struct_fields__}
    columns["first_step"] = columns["longest_step"] = first + np.arange(len(ends) - 1)
    columns["num_steps"] = np.ones(len(ends) - 1, np.int64)
    columns["end_ns"], columns["span_ns"] = ends[1:], np.diff(ends)
    columns["longest_ns"] = columns["span_ns"]
    return columns


def step_ends(content: bytes) -> tuple[int, list[int]] | None:
    """The number of the first step, and its begin followed by the ends of all steps.

    A file that a kill cut short is read as far as it goes.

    Returns:
        None where it is none, or no step in it has ended.
    """
    values = array("q")
    values.frombytes(content[:len(content) // 8 * 8])
    if len(values) and values[0] != MAGIC:
        values.byteswap()  # of another machine
    if len(values) < 4 or values[0] != MAGIC or values[1] < 0:
        return None
    times = values[2:].tolist()
    whole = next((place for place in range(1, len(times)) if not 0 <= times[place] - times[place - 1] < MOST_SPAN_NS),
                 len(times))
    return (values[1], times[:whole]) if whole > 1 and times[0] > 0 else None
