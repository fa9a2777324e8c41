"""Processors: for how long ranks could have run and had none, and how late that may make one of them by turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

CROWDED = 0.05
"""Part of a step for which each rank of a host could have run and had no processor, from which on the host is too
small for what runs on it."""
BY_TURNS = 0.4
"""Part of such time by which ranks of a host differ in a balanced job: they take turns, and not evenly."""
BY_CHANCE = 2.0
"""The same on a crowded host, where the lack of a processor is all that makes a rank late: whatever else runs on the
host hits one rank now and another later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedHost:
    """A host all of whose ranks waited for processors."""

    host: str
    ranks: list[int]
    queued_ratio: float
    """Part of a step for which they could have run and had no processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """What ranks had of their processors, mean of a step; ranks by number. Empty where kernels do not tell."""

    queued_ns: Mapping[int, float] = field(default_factory=dict)
    """How long the thread of the steps could have run and had none."""
    ran_ns: Mapping[int, float] = field(default_factory=dict)
    """How long it had one."""
    step_ns: Mapping[int, float] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    median: Processors | None = None
    """The same of the median step."""

    @classmethod
    def of(cls, windows: pl.DataFrame, hosts: Mapping[int, str]) -> Processors:
        """From steps that count, with `run_queue_ns`, `cpu_ns` and `duration_ns`."""
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
        """How long it would have waited for a processor, for the time that it had one, if it fared as the median other.

        Args:
            rank: Number of the rank.
            on_host: True where only ranks of its host are compared with it.

        Returns:
            None where that is not known of it, or of no other.
        """
        others = [other for other in self.queued_ns if other != rank and (
            not on_host or self.hosts[other] == self.hosts[rank])] if rank in self.queued_ns else []
        if not others:
            return None
        return self.ran_ns[rank] * float(np.median([self.queued_ns[other] / max(self.ran_ns[other], 1)
                                                    for other in others]))

    def lacked_ns(self, rank: int) -> float:
        """How much longer it waited for a processor than the others, for the time that it had one."""
        usual = self.usual_ns(rank)
        return 0.0 if usual is None else self.queued_ns[rank] - usual

    def always_lacked_ns(self, rank: int) -> float:
        """The same in the mean and in the median step: one step without a processor is no habit."""
        return min(one.lacked_ns(rank) for one in (self, self.median) if one is not None)

    def by_turns_part(self, rank: int) -> float:
        """Part of what it lacked, which is no 0, that it may lack in a balanced job as well."""
        usual = self.usual_ns(rank, on_host=True) or 0.0
        is_crowded = usual >= CROWDED * self.step_ns.get(rank, 0)
        return (BY_CHANCE if is_crowded else BY_TURNS) * usual / max(self.always_lacked_ns(rank), 1)

    def by_turns_ratio(self, rank: int) -> float:
        """The same, as a part of all work."""
        usual = self.usual_ns(rank, on_host=True)
        return 0.0 if usual is None else BY_TURNS * usual / max(usual + self.ran_ns[rank], 1)

    def share(self, ranks: Sequence[int]) -> float:
        """Part of a processor that the median of some ranks got while it could have run."""
        return float(np.median([self.ran_ns[rank] / max(self.ran_ns[rank] + self.queued_ns[rank], 1)
                                for rank in ranks]))

    def crowded(self) -> list[CrowdedHost]:
        """Hosts of several ranks, all of which waited for processors; by name."""
        by_host: dict[str, list[int]] = {}
        for rank in self.queued_ns:
            by_host.setdefault(self.hosts[rank], []).append(rank)
        each = {host: [self.queued_ns[rank] / max(self.step_ns[rank], 1) for rank in ranks]
                for host, ranks in by_host.items()}
        return [CrowdedHost(host=host, ranks=by_host[host], queued_ratio=float(np.mean(ratios)))
                for host, ratios in sorted(each.items()) if len(ratios) > 1 and min(ratios) >= CROWDED]
