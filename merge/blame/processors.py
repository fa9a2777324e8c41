"""Processors: how long ranks waited in the run queue for one, and how late taking turns on them may make a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

CROWDED = 0.05
"""A host is crowded (has too few processors) if each of its ranks waits for a processor (is runnable, but not running)
for at least this fraction of a step."""
BY_TURNS = 0.4
"""Fraction of the usual wait for a processor by which ranks of a host may differ in a balanced job, because they do not
take turns evenly."""
BY_CHANCE = 2.0
"""The same fraction on a crowded host, if the wait for a processor is all that makes a rank late: other load on the
host hits one rank in one step and another one later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedHost:
    """A host all of whose ranks waited for processors."""

    host: str
    ranks: list[int]
    queued_ratio: float
    """Fraction of a step for which its ranks were runnable and had no processor; mean over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Run queue and CPU time per step, by rank number; means over steps. Empty if the kernel does not report them."""

    queued_ns: Mapping[int, float] = field(default_factory=dict)
    """How long the thread that runs the steps was runnable and had no processor."""
    ran_ns: Mapping[int, float] = field(default_factory=dict)
    """How long this thread ran on a processor."""
    step_ns: Mapping[int, float] = field(default_factory=dict)
    """Step time."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    median: Processors | None = None
    """The medians over steps."""

    @classmethod
    def of(cls, windows: pl.DataFrame, hosts: Mapping[int, str]) -> Processors:
        """Takes the times from counted steps with the columns `run_queue_ns`, `cpu_ns` and `duration_ns`."""
        times = pl.col("run_queue_ns", "cpu_ns", "duration_ns")
        by_rank = windows.drop_nulls(["run_queue_ns", "cpu_ns"]).group_by("rank")
        return replace(cls._of(by_rank.agg(times.mean()), hosts), median=cls._of(by_rank.agg(times.median()), hosts))

    @classmethod
    def _of(cls, typical: pl.DataFrame, hosts: Mapping[int, str]) -> Processors:
        ranks, queued, ran, step = (typical.sort("rank")[name].to_list() for name in (
            "rank", "run_queue_ns", "cpu_ns", "duration_ns"))
        return cls(queued_ns=dict(zip(ranks, queued, strict=True)), ran_ns=dict(zip(ranks, ran, strict=True)),
                   step_ns=dict(zip(ranks, step, strict=True)), hosts={rank: hosts.get(rank, "") for rank in ranks})

    def usual_ns(self, rank: int, *, on_host: bool = False) -> float | None:
        """Returns how long the rank would have waited for a processor if it waited as much per CPU time as the median
        other rank.

        Args:
            rank: Number of the rank.
            on_host: Whether it is compared only with ranks of its host.

        Returns:
            None if this rank's times, or those of all others, are unknown.
        """
        others = [other for other in self.queued_ns if other != rank and (
            not on_host or self.hosts[other] == self.hosts[rank])] if rank in self.queued_ns else []
        if not others:
            return None
        return self.ran_ns[rank] * float(np.median([self.queued_ns[other] / max(self.ran_ns[other], 1)
                                                    for other in others]))

    def lacked_ns(self, rank: int) -> float:
        """Returns how much longer the rank waited for a processor than the others, per CPU time; 0 if unknown."""
        usual = self.usual_ns(rank)
        return 0.0 if usual is None else self.queued_ns[rank] - usual

    def always_lacked_ns(self, rank: int) -> float:
        """Returns the smaller of that in the mean and in the median step: one step without a processor is no habit."""
        return min(one.lacked_ns(rank) for one in (self, self.median) if one is not None)

    def by_turns_part(self, rank: int) -> float:
        """Returns the fraction of what it lacked (assumed nonzero) that a rank of a balanced job may lack as well."""
        usual = self.usual_ns(rank, on_host=True) or 0.0
        is_crowded = usual >= CROWDED * self.step_ns.get(rank, 0)
        return (BY_CHANCE if is_crowded else BY_TURNS) * usual / max(self.always_lacked_ns(rank), 1)

    def by_turns_ratio(self, rank: int) -> float:
        """Returns the fraction of all work by which a rank may vary because ranks of its host take turns on
        processors."""
        usual = self.usual_ns(rank, on_host=True)
        return 0.0 if usual is None else BY_TURNS * usual / max(usual + self.ran_ns[rank], 1)

    def share(self, ranks: Sequence[int]) -> float:
        """Returns which fraction of the time in which it could have run the median of some ranks had a processor."""
        return float(np.median([self.ran_ns[rank] / max(self.ran_ns[rank] + self.queued_ns[rank], 1)
                                for rank in ranks]))

    def crowded(self) -> list[CrowdedHost]:
        """Returns the hosts of several ranks all of which waited for processors, by name."""
        by_host: dict[str, list[int]] = {}
        for rank in self.queued_ns:
            by_host.setdefault(self.hosts[rank], []).append(rank)
        each = {host: [self.queued_ns[rank] / max(self.step_ns[rank], 1) for rank in ranks]
                for host, ranks in by_host.items()}
        return [CrowdedHost(host=host, ranks=by_host[host], queued_ratio=float(np.mean(ratios)))
                for host, ratios in sorted(each.items()) if len(ratios) > 1 and min(ratios) >= CROWDED]
