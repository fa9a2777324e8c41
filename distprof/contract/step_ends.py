"""`step_ends.bin`: when steps ended that followed the last pass. Appended while the job runs.

64-bit integers in the byte order of the machine: `MAGIC`, the number of the first of these steps, when it began, when
it ended, when the next one ended, and so on; ns since the epoch, the clock of the rank.
"""

from __future__ import annotations

from array import array

MAGIC = int.from_bytes(b"distprof"[:7], "little")
MOST_SPAN_NS = 366 * 86_400 * 10**9
"""Longer than any step; what jumps farther is damage."""


def step_ends(content: bytes) -> tuple[int, list[int]] | None:
    """The number of the first step, and its begin followed by the ends of all steps.

    A file that a kill cut short is read as far as it goes.

    Args:
        content: Of the file.

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
