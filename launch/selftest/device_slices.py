"""Slices of the GPUs in a merged trace: copies, and the kernels of known length with what surrounds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distprof.launch.selftest.evidence import Evidence

Slice = dict[str, Any]
SPIN = "spin_kernel"
"""In the name of the kernel that torch.cuda._sleep runs."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device work of one rank, in the order in which it starts."""

    rank: int
    slices: list[Slice]

    @property
    def _all_spins(self) -> list[Slice]:
        return [one for one in self.slices if SPIN in one["name"]]

    @property
    def spins(self) -> list[Slice]:
        """The first of the two in each step."""
        return self._all_spins[::2]

    @property
    def side_spins(self) -> list[Slice]:
        """The second one, on a side stream."""
        return self._all_spins[1::2]

    @property
    def has_two_streams(self) -> bool:
        """True where both kinds are on one stream each, and these differ."""
        main, side = ({_stream(one) for one in some} for some in (self.spins, self.side_spins))
        return len(main) == len(side) == 1 and main != side

    def copies(self, kind: str) -> list[Slice]:
        """Copies in one direction, like HtoD."""
        return [one for one in self.slices if one["cat"] == "gpu_memcpy" and kind in one["name"]]

    def gaps_ns(self) -> Iterator[float]:
        """For each kernel of the side stream, how long the main stream stands still around it."""
        main = [one for one in self._main() if one["cat"] == "kernel"]
        for spin in self.side_spins:
            before = [_end(one) for one in main if one["ts"] < spin["ts"]]
            after = [float(one["ts"]) for one in main if one["ts"] >= spin["ts"]]
            if before and after:
                yield (min(after) - max(before)) * 1e3

    def meanwhile(self) -> int:
        """Kernels of the main stream that run while one of the side stream does."""
        main = [one for one in self._main() if one["cat"] == "kernel"]
        return sum(float(one["ts"]) < _end(spin) and _end(one) > float(spin["ts"])
                   for spin in self.side_spins for one in main)

    def _main(self) -> list[Slice]:
        streams = {_stream(one) for one in self.spins}
        return [one for one in self.slices if _stream(one) in streams]


def devices(evidence: Evidence) -> list[Device]:
    """Device work of each rank."""
    ranks = evidence.rank_of_process
    slices: dict[int, list[Slice]] = {one.rank: [] for one in evidence.planted}
    for one in evidence.trace:
        if one.get("cat") in ON_DEVICE and ranks.get(one["pid"]) in slices:
            slices[ranks[one["pid"]]].append(one)
    return [Device(rank=rank, slices=found) for rank, found in slices.items()]


def _end(one: Slice) -> float:
    return float(one["ts"]) + float(one["dur"])


def _stream(one: Slice) -> Any:
    return one["args"].get("stream")
