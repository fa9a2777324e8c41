"""What two runs of the same program differ by: measured over several runs, else assumed and seen in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

BETWEEN_RUNS, ON_PROCESSORS = 0.01, 0.05
"""Standard deviation between runs that is assumed where no runs measure it: where data lies in memory, which core and
which neighbours a rank has. The second is that of jobs that compute on processors, which share caches, clock rates and
often the machine with others: of 20 pairs of identical jobs the steps differed by 10 % (benchmarks/RESULTS.md)."""
OF_QUEUE, OF_QUEUE_ON_CORE = 0.4, 0.1
"""Further standard deviation, as a part of the share of a step in which ranks could have run and had no processor: of
times, and of the time on a processor itself. Identical jobs beside others on a busy machine show that
(benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much runs differ by themselves, as a part of what is measured."""

    assumed: float = BETWEEN_RUNS
    """Of everything."""
    base_queued: Sequence[float | None] = (None,)
    """Of each run, the part of a step in which a thread had to wait for a processor; None where that is not known."""
    new_queued: Sequence[float | None] = (None,)
    of_queue: float = OF_QUEUE
    """How much of that is noise."""

    @property
    def is_measured(self) -> bool:
        """True where a side has several runs, which show by how much they differ."""
        return len(self.base_queued) + len(self.new_queued) > 2

    @property
    def by_queue(self) -> tuple[float, ...]:
        """Standard deviation of each run by what took its processors; 0 where that is not known."""
        return tuple(self.of_queue * (one or 0.0) for one in (*self.base_queued, *self.new_queued))

    @property
    def on_core(self) -> Noise:
        """That of the time on a processor."""
        return replace(self, of_queue=OF_QUEUE_ON_CORE)

    @property
    def without_queue(self) -> Noise:
        """That of what is compared with the rest of its own run, which shared the fate."""
        return replace(self, of_queue=0.0, assumed=min(self.assumed, BETWEEN_RUNS))
