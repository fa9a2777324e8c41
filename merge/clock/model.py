"""The clock of a run: the line from each rank's clock to that of rank 0, and its uncertainty."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from distprof.arrays import Array, Integers
from distprof.contract.problems import ClockReason
from distprof.contract.rank_summary import NO_INTEGER

if TYPE_CHECKING:
    import polars as pl

Align = Literal["auto", "samples", "collectives", "none"]
"""`auto` uses samples, or collectives if samples do not join all ranks; `none` shifts nothing."""
Method = Literal["shared", "samples", "collectives", "none"]
"""shared: the ranks read one clock; samples: they asked each other; collectives: estimated from the ends of
collectives."""
Nanoseconds = Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """A line from a rank's clock to the common one, in whole nanoseconds; exact for times since the epoch."""

    offset_ns: int = 0
    """Offset to be added to the rank's time at `reference_ns`."""
    drift_ppm: float = 0.0
    """Growth of the offset: 1 ppm is 1 us per second."""
    reference_ns: int = 0
    """Time on the rank's clock, ns since the epoch."""

    def shift(self, at_ns: int) -> int:
        """Converts a time of the rank to the common clock. The order of two times never changes."""
        return at_ns + self.offset_ns + round((at_ns - self.reference_ns) * (self.drift_ppm * 1e-6))

    def to_common(self, at_ns: Any) -> Any:
        """Converts an int64 array of times like `shift`."""
        if not self.drift_ppm:
            return at_ns + self.offset_ns
        return at_ns + self.offset_ns + np.rint((at_ns - self.reference_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)

    def to_own(self, at_ns: int) -> int:
        """Converts a time of the common clock to the rank's clock, to about a nanosecond."""
        slope = self.drift_ppm * 1e-6
        return at_ns - self.offset_ns - round((at_ns - self.offset_ns - self.reference_ns) * slope / (1 + slope))

    def then(self, other: RankClock) -> RankClock:
        """Composes the line to a peer with the peer's own line."""
        there_ns = self.reference_ns + self.offset_ns
        slope = (1 + self.drift_ppm * 1e-6) * (1 + other.drift_ppm * 1e-6) - 1
        return RankClock(offset_ns=other.shift(there_ns) - self.reference_ns, drift_ppm=slope * 1e6,
                         reference_ns=self.reference_ns)


UNSHIFTED = RankClock()
"""Leaves times unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What is known about one rank's clock."""

    line: RankClock = UNSHIFTED
    uncertainty_ns: int | None = None
    """Bound of the error of the offset while the rank was recorded; None if not known (then nothing is shifted)."""
    drift_uncertainty_ppm: float | None = None
    window: tuple[int, int] | None = None
    """First and last time, on the rank's clock, for which the uncertainty holds; None if it always does."""
    clock: int = 0
    """Ranks with the same number read the same clock; 0 is that of the reference rank."""
    device_ns: int = 0
    """Bound of the difference between times of the rank's device and of the rank's own clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Check of the alignment against causality: no rank leaves a collective before the last one has entered it."""

    num_collectives: int
    """Number of checked collectives: those that no rank leaves before all have entered, with known ends."""
    violations: int
    """Number of collectives that a rank left before another entered, on the common clock."""
    largest_violation_ns: int | None
    """Largest such time; None without violations."""
    allowed_violation_ns: int
    """The violation that the uncertainty of two clocks explains."""
    end_spread_ns: Mapping[str, int]
    """Last minus first end of a collective, small if clocks are exact: p50, p95, max. Empty without known ends."""

    @property
    def contradicts(self) -> bool:
        """True if the alignment is wrong by more than its uncertainty."""
        return (self.largest_violation_ns or 0) > self.allowed_violation_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How the times of all ranks are brought to one clock."""

    method: Method
    ranks: Mapping[int, Alignment]
    num_hosts: int
    """Number of hosts; 0 if the clock was estimated for ranks whose hosts are unknown."""
    num_samples: int = 0
    """Number of comparisons of two clocks that it is based on."""
    num_collectives: int = 0
    """Number of collectives that it was estimated from."""
    reason: ClockReason | None = None
    """Why ranks are not aligned; None if all are."""
    excess_ns: int = 0
    """How much measurements contradict clocks of constant drift, at most."""
    set_by_ns: int = 0
    """How far the wall clock of a rank was set while it was recorded, at most."""
    check: Check | None = None

    @property
    def unchecked(self) -> Check:
        """The check if there are no collectives at all."""
        return Check(num_collectives=0, violations=0, largest_violation_ns=None, end_spread_ns={},
                     allowed_violation_ns=self.pair_uncertainty_ns(self.known_ranks) or 0)

    @property
    def aligned(self) -> bool:
        """True if every rank is on the common clock, within `uncertainty_ns`."""
        return all(rank.uncertainty_ns is not None for rank in self.ranks.values())

    @property
    def num_clocks(self) -> int:
        """Number of different clocks that the ranks read."""
        return len({rank.clock for rank in self.ranks.values()})

    @property
    def compares_exactly(self) -> bool:
        """True if all times of ranks are from one clock."""
        return self.num_clocks == 1 and not any(one.device_ns for one in self.ranks.values())

    @property
    def uncertainty_ns(self) -> int | None:
        """Uncertainty of the worst rank; None if a rank is not aligned."""
        known = [rank.uncertainty_ns for rank in self.ranks.values() if rank.uncertainty_ns is not None]
        return max(known, default=None) if self.aligned else None

    @property
    def known_ranks(self) -> list[int]:
        """Ranks that are on the common clock."""
        return [number for number, rank in self.ranks.items() if rank.uncertainty_ns is not None]

    def pair_uncertainty_ns(self, ranks: Collection[int] | None = None) -> int | None:
        """Returns the error bound of the difference of times of two of these ranks, or of any two.

        Ranks that read one clock share its error, so that their times compare exactly, except times of devices.

        Returns:
            ns; 0 if all read one clock, None if clocks were never compared.
        """
        known = [self.ranks[rank] for rank in (self.ranks if ranks is None else ranks) if rank in self.ranks]
        of_devices = sum(sorted(one.device_ns for one in known)[-2:]) if len(known) > 1 else 0
        if len({one.clock for one in known}) < 2:
            return of_devices
        worst: dict[int, int] = {}
        for one in known:
            if one.uncertainty_ns is None:
                return None
            worst[one.clock] = max(worst.get(one.clock, 0), one.uncertainty_ns)
        return sum(sorted(worst.values())[-2:]) + of_devices

    @property
    def ends_apart_ns(self) -> int | None:
        """How far apart ranks leave a collective (95th percentile), if clocks are estimated from that; else None.

        Kernels of a collective end within microseconds of each other on all devices, however long they take. So their
        clocks are known better than by the bounds, which are as wide as a collective.
        """
        apart = self.check.end_spread_ns.get("p95") if self.check is not None else None
        return apart if self.method == "collectives" and self.aligned else None

    def line(self, rank: int) -> RankClock:
        """Returns the line from a rank's clock to the common clock; an unaligned rank's line changes nothing."""
        return self.ranks[rank].line

    def to_common_ns(self, ranks: npt.ArrayLike, at_ns: npt.ArrayLike) -> Nanoseconds:
        """Converts many times like `RankClock.shift`.

        Args:
            ranks: The rank of each time, or one rank for all.
            at_ns: Times, int64 ns since the epoch on the clock of their rank.
        """
        every = np.arange(max(self.ranks, default=-1) + 1)
        return RankClocks(self, every).common_ns(np.asarray(ranks, dtype=np.int64), np.asarray(at_ns, dtype=np.int64))

    @classmethod
    def of_summary(cls, clock: Mapping[str, Any]) -> Clock:
        """Returns the clock of a merge from its `clock` in summary.json, for times that are already converted."""
        return cls(method=clock["method"], reason=clock["reason"], num_samples=clock["num_samples"],
                   num_collectives=clock["num_collectives"], num_hosts=clock["num_hosts"],
                   excess_ns=clock["excess_ns"], set_by_ns=clock["set_by_ns"], ranks={
                       one["rank"]: Alignment(uncertainty_ns=one["uncertainty_ns"], clock=one["clock"],
                                             device_ns=one.get("device_ns", 0))
                       for one in clock["ranks"]})

    def to_json(self) -> dict[str, Any]:
        """Returns `clock` of summary.json."""
        check = self.check
        return {
            "method": self.method,
            "reason": self.reason,
            "num_samples": self.num_samples,
            "num_collectives": self.num_collectives,
            "aligned": self.aligned,
            "num_hosts": self.num_hosts,
            "num_clocks": self.num_clocks,
            "uncertainty_ns": self.uncertainty_ns,
            "excess_ns": self.excess_ns,
            "residual_ns": dict(check.end_spread_ns) if check is not None and check.end_spread_ns else None,
            "causality": None if check is None else {
                "num_collectives": check.num_collectives, "violations": check.violations,
                "largest_violation_ns": check.largest_violation_ns, "contradicts": check.contradicts},
            "ranks": [_rank_json(rank, self.ranks[rank]) for rank in sorted(self.ranks)],
            "set_by_ns": self.set_by_ns,
        }


def _rank_json(rank: int, known: Alignment) -> dict[str, Any]:
    aligned = known.uncertainty_ns is not None
    return {"rank": rank, "clock": known.clock, "offset_ns": known.line.offset_ns if aligned else None,
            "drift_ppm": known.line.drift_ppm if aligned else None,
            "drift_uncertainty_ppm": known.drift_uncertainty_ppm, "reference_ns": known.line.reference_ns,
            "uncertainty_ns": known.uncertainty_ns, "device_ns": known.device_ns}


class RankClocks:
    """The clocks of some ranks as arrays, by index."""

    def __init__(self, clock: Clock, ranks: Integers) -> None:
        self._clock = clock
        lines = [clock.ranks[rank].line if rank in clock.ranks else UNSHIFTED for rank in ranks.tolist()]
        self._offset, self._reference = (np.array([getattr(line, name) for line in lines], np.int64)
                                         for name in ("offset_ns", "reference_ns"))
        self._slope = np.array([line.drift_ppm * 1e-6 for line in lines])
        self._unsure = dict[int, int | None]()

    def common_ns(self, index: Array, own_ns: Integers) -> Integers:
        """Converts times to the common clock. `index` has the ranks' indices, in a shape that broadcasts with
        `own_ns`."""
        drifted = np.rint((own_ns - self._reference[index]) * self._slope[index]).astype(np.int64)
        return np.where(own_ns == NO_INTEGER, NO_INTEGER, own_ns + self._offset[index] + drifted)

    def uncertainty_ns(self, numbers: Array, members: Integers) -> Integers:
        """Returns the error bound of the difference of two times in each meeting; negative if not known.

        Args:
            numbers: Numbers of the meetings.
            members: Ranks of each; shape (numbers, members).
        """
        if self._clock.compares_exactly:
            return np.zeros(len(numbers), np.int64)
        for row, number in enumerate(numbers.tolist()):
            if number not in self._unsure:
                self._unsure[number] = self._clock.pair_uncertainty_ns(members[row].tolist())
        found = [self._unsure[number] for number in numbers.tolist()]
        return np.array([-1 if one is None else one for one in found], np.int64)


def on_common_clock(clock: Clock, frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Converts these columns from the clocks of the rows' ranks to the common clock; null stays null."""
    import polars as pl  # slow to import, and a merge of traces shifts no tables

    ranks = frame["rank"].to_numpy()
    return frame.with_columns(
        pl.when(pl.col(name).is_not_null()).then(
            pl.Series(name, clock.to_common_ns(ranks, frame[name].fill_null(0).to_numpy()))).alias(name)
        for name in names)
