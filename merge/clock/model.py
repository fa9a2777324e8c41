"""The clock of a run: the line from each rank's clock to that of rank 0, and how sure it is."""

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
"""`auto` takes samples, and collectives where they do not join all ranks; `none` shifts nothing."""
Method = Literal["shared", "samples", "collectives", "none"]
"""shared: the ranks read one clock; samples: they asked each other; collectives: estimated from when those ended."""
Nanoseconds = Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """A line from a rank's clock to the common one; whole nanoseconds, exact at the size of epoch times."""

    offset_ns: int = 0
    """To be added at `reference_ns`."""
    drift_ppm: float = 0.0
    """By how much the offset grows: 1 ppm is 1 us a second."""
    reference_ns: int = 0
    """Ns since the epoch, the rank's clock."""

    def shift(self, at_ns: int) -> int:
        """A time of the rank on the common clock. Never turns the order of two times."""
        return at_ns + self.offset_ns + round((at_ns - self.reference_ns) * (self.drift_ppm * 1e-6))

    def to_common(self, at_ns: Any) -> Any:
        """`shift` of an int64 array of times."""
        if not self.drift_ppm:
            return at_ns + self.offset_ns
        return at_ns + self.offset_ns + np.rint((at_ns - self.reference_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)

    def to_own(self, at_ns: int) -> int:
        """A time of the common clock on the rank's, to a nanosecond or so."""
        slope = self.drift_ppm * 1e-6
        return at_ns - self.offset_ns - round((at_ns - self.offset_ns - self.reference_ns) * slope / (1 + slope))

    def then(self, other: RankClock) -> RankClock:
        """The line to a peer, then the peer's own: one line for both."""
        there_ns = self.reference_ns + self.offset_ns
        slope = (1 + self.drift_ppm * 1e-6) * (1 + other.drift_ppm * 1e-6) - 1
        return RankClock(offset_ns=other.shift(there_ns) - self.reference_ns, drift_ppm=slope * 1e6,
                         reference_ns=self.reference_ns)


UNSHIFTED = RankClock()
"""Leaves times as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What is known of one rank's clock."""

    line: RankClock = UNSHIFTED
    uncertainty_ns: int | None = None
    """The true offset differs by this at most while the rank was recorded; None: not known, and nothing is shifted."""
    drift_uncertainty_ppm: float | None = None
    window: tuple[int, int] | None = None
    """First and last time, on the rank's clock, for which the uncertainty holds; None: always."""
    clock: int = 0
    """Ranks with the same number read the same clock; 0 is that of rank 0."""
    device_ns: int = 0
    """By how much times that the rank's device took may differ from those of the rank's own clock, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What the collectives say of the alignment; nobody leaves one before the last rank has entered it."""

    num_collectives: int
    """Those that all ranks leave only after all have entered, with a known end."""
    violations: int
    """Collectives that a rank left before another entered, on the common clock."""
    largest_violation_ns: int | None
    """By how much at most; None without violations."""
    allowed_violation_ns: int
    """What the uncertainty of two clocks explains."""
    end_spread_ns: Mapping[str, int]
    """Last minus first end of a collective, which an exact clock makes small: p50, p95, max. Empty: none has ends."""

    @property
    def contradicts(self) -> bool:
        """True where the alignment is wrong by more than it says."""
        return (self.largest_violation_ns or 0) > self.allowed_violation_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How the ranks of a run are brought to one clock."""

    method: Method
    ranks: Mapping[int, Alignment]
    num_hosts: int
    """0: estimated for ranks whose hosts are unknown."""
    num_samples: int = 0
    """Comparisons of two clocks that it rests on."""
    num_collectives: int = 0
    """Collectives that it was estimated from."""
    reason: ClockReason | None = None
    """Why ranks are not aligned; None where all are."""
    excess_ns: int = 0
    """By how much what was measured contradicts clocks of constant drift."""
    set_by_ns: int = 0
    """How far the wall clock of a rank was set while it was recorded, at most."""
    check: Check | None = None

    @property
    def unchecked(self) -> Check:
        """What no collective at all says."""
        return Check(num_collectives=0, violations=0, largest_violation_ns=None, end_spread_ns={},
                     allowed_violation_ns=self.pair_uncertainty_ns(self.known_ranks) or 0)

    @property
    def aligned(self) -> bool:
        """True where every rank is on the common clock, as far as `uncertainty_ns` says."""
        return all(rank.uncertainty_ns is not None for rank in self.ranks.values())

    @property
    def num_clocks(self) -> int:
        """How many different clocks the ranks read."""
        return len({rank.clock for rank in self.ranks.values()})

    @property
    def compares_exactly(self) -> bool:
        """True where times of ranks are all by one clock."""
        return self.num_clocks == 1 and not any(one.device_ns for one in self.ranks.values())

    @property
    def uncertainty_ns(self) -> int | None:
        """That of the worst rank; None where one is not aligned."""
        known = [rank.uncertainty_ns for rank in self.ranks.values() if rank.uncertainty_ns is not None]
        return max(known, default=None) if self.aligned else None

    @property
    def known_ranks(self) -> list[int]:
        """Those that are on the common clock."""
        return [number for number, rank in self.ranks.items() if rank.uncertainty_ns is not None]

    def pair_uncertainty_ns(self, ranks: Collection[int] | None = None) -> int | None:
        """By how much times of two of these ranks, or of any two, may be wrong against each other.

        Ranks that read one clock are wrong together, so that their times compare exactly, but for those of devices.

        Returns:
            ns; 0 where all read one clock, None where clocks were never compared.
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
        """How far apart ranks leave a collective (95 %), where clocks are estimated from that; else None.

        Kernels of a collective end together on all devices, within microseconds, however long they take: by that their
        clocks are known better than by the bounds, which are as wide as a collective.
        """
        apart = self.check.end_spread_ns.get("p95") if self.check is not None else None
        return apart if self.method == "collectives" and self.aligned else None

    def line(self, rank: int) -> RankClock:
        """What brings a rank's times to the common clock; those of a rank that is not aligned stay."""
        return self.ranks[rank].line

    def to_common_ns(self, ranks: npt.ArrayLike, at_ns: npt.ArrayLike) -> Nanoseconds:
        """`RankClock.shift` of many times.

        Args:
            ranks: The rank of each time, or one rank for all.
            at_ns: Times, int64 ns since the epoch on the clock of their rank.
        """
        every = np.arange(max(self.ranks, default=-1) + 1)
        return RankClocks(self, every).common_ns(np.asarray(ranks, dtype=np.int64), np.asarray(at_ns, dtype=np.int64))

    @classmethod
    def of_summary(cls, clock: Mapping[str, Any]) -> Clock:
        """The clock of a merge by its `clock` in summary.json, for times that are on it already."""
        return cls(method=clock["method"], reason=clock["reason"], num_samples=clock["num_samples"],
                   num_collectives=clock["num_collectives"], num_hosts=clock["num_hosts"],
                   excess_ns=clock["excess_ns"], set_by_ns=clock["set_by_ns"], ranks={
                       one["rank"]: Alignment(uncertainty_ns=one["uncertainty_ns"], clock=one["clock"],
                                             device_ns=one.get("device_ns", 0))
                       for one in clock["ranks"]})

    def to_json(self) -> dict[str, Any]:
        """`clock` of summary.json."""
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
    """The clocks of some ranks as arrays, by their index."""

    def __init__(self, clock: Clock, ranks: Integers) -> None:
        self._clock = clock
        lines = [clock.ranks[rank].line if rank in clock.ranks else UNSHIFTED for rank in ranks.tolist()]
        self._offset, self._reference = (np.array([getattr(line, name) for line in lines], np.int64)
                                         for name in ("offset_ns", "reference_ns"))
        self._slope = np.array([line.drift_ppm * 1e-6 for line in lines])
        self._unsure = dict[int, int | None]()

    def common_ns(self, index: Array, own_ns: Integers) -> Integers:
        """Times of ranks, by index and of a shape that goes with `own_ns`, on the common clock."""
        drifted = np.rint((own_ns - self._reference[index]) * self._slope[index]).astype(np.int64)
        return np.where(own_ns == NO_INTEGER, NO_INTEGER, own_ns + self._offset[index] + drifted)

    def uncertainty_ns(self, numbers: Array, members: Integers) -> Integers:
        """By how much two times of each meeting may be wrong against each other; below 0 where it is not known.

        Args:
            numbers: Of the meetings that are asked for.
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
    """The rows with these columns, each of its rank's clock, on the common clock; null stays null."""
    import polars as pl  # takes its time, and a merge of traces shifts no tables

    ranks = frame["rank"].to_numpy()
    return frame.with_columns(
        pl.when(pl.col(name).is_not_null()).then(
            pl.Series(name, clock.to_common_ns(ranks, frame[name].fill_null(0).to_numpy()))).alias(name)
        for name in names)
