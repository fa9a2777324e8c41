"""Simulated clocks with known error."""

from __future__ import annotations

from hypothesis import strategies as st

from distprof.merge.clock.model import Alignment, RankClock

NOW = 1_795_273_665_086_560_780
SECOND = 10**9
offsets = st.integers(-(2 * 10**18), 2 * 10**18) | st.integers(-(10**7), 10**7)
drifts = st.integers(-400_000, 400_000)
"""Drifts in parts per 10^9."""


class TrueClock:
    """A clock with a known offset and drift, which shows integer ns."""

    def __init__(self, offset_ns: int, drift_ppb: int) -> None:
        self.offset_ns, self.drift_ppb = offset_ns, drift_ppb

    def at(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + (true_ns - NOW) * self.drift_ppb // 10**9

    def when(self, shown_ns: int) -> int:
        """Returns the true time at which the clock shows `shown_ns`."""
        return NOW + (shown_ns - self.offset_ns - NOW) * 10**9 // (10**9 + self.drift_ppb)


clocks = st.builds(TrueClock, offsets, drifts)
lines = st.builds(RankClock, offset_ns=offsets, drift_ppm=st.floats(-1000, 1000),
                  reference_ns=st.integers(NOW - 10**13, NOW + 10**13))
times = st.integers(NOW - 10**13, NOW + 10**13)


def error(alignment: Alignment, mine: TrueClock, other: TrueClock, true_ns: int) -> int:
    return abs(alignment.line.shift(mine.at(true_ns)) - other.at(true_ns))
