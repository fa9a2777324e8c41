"""Ranks that are recorded fully, as `--ranks 0-7,leaders,sample:32` names them; the others are recorded lightly.

Each rank decides by itself, from what all ranks know alike: nothing is communicated for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from distprof.errors import UsageError
from distprof.process.identity import Identity
from distprof.process.topology import Topology

VARIABLE = "DISTPROF_RANKS"
ALL, LEADERS, SAMPLE = "all", "leaders", "sample"
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_SAMPLE = re.compile(rf"{SAMPLE}:(\d+)")
KNOWN_BASES = ("given", "mesh", "framework")
"""What a topology may rest on whose coordinates say which part of the model a rank has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRanks:
    """All that were named; a rank is recorded fully if one of the parts names it."""

    text: str
    """As the user gave it."""
    spans: tuple[tuple[int, int], ...] = ()
    """First and last rank."""
    leaders: bool = False
    sample: int = 0
    """Ranks that are spread evenly over the job."""
    every: bool = False

    @classmethod
    def parse(cls, text: str, *, where: str = "--ranks") -> ChosenRanks:
        """Reads `0-7,leaders,sample:32` or `all`.

        Raises:
            UsageError: A part is none of these.
        """
        parts = [part.strip() for part in text.split(",") if part.strip()]
        spans, samples = list[tuple[int, int]](), [0]
        for part in parts:
            if (span := _SPAN.fullmatch(part)) is not None:
                spans.append((int(span[1]), int(span[2] or span[1])))
            elif (sample := _SAMPLE.fullmatch(part)) is not None and int(sample[1]):
                samples.append(int(sample[1]))
            elif part not in (LEADERS, ALL):
                raise _wrong(part, where)
        backward = next((span for span in spans if span[0] > span[1]), None)
        if not parts or backward is not None:
            raise _wrong("-".join(map(str, backward)) if backward is not None else text, where)
        return cls(text=",".join(parts), spans=tuple(spans), leaders=LEADERS in parts, sample=max(samples),
                   every=ALL in parts)

    @classmethod
    def requested(cls, environ: Mapping[str, str]) -> ChosenRanks | None:
        """What DISTPROF_RANKS says; None where nothing does.

        Raises:
            UsageError: It names no ranks.
        """
        text = environ.get(VARIABLE, "")
        return cls.parse(text, where=VARIABLE) if text else None

    def are_with(self, own: Identity, topology: Topology | None) -> bool:
        """Whether a rank is one of them.

        Args:
            own: The rank.
            topology: Its place in the device mesh; None where that is not known yet.
        """
        return (self.every or any(first <= own.rank <= last for first, last in self.spans)
                or own.rank in spread(self.sample, own.world_size) or (self.leaders and _leads(own, topology)))


def spread(number: int, num_ranks: int) -> frozenset[int]:
    """So many ranks at even distances, the first among them; all where there are no more."""
    return frozenset(index * num_ranks // number for index in range(number)) if number else frozenset()


def _leads(own: Identity, topology: Topology | None) -> bool:
    """One rank of each part of the model, the first along dp; where parts are not known, one of each host."""
    if topology is None or topology.basis not in KNOWN_BASES:
        return own.local_rank == 0
    return topology.coordinates.get("dp", 0) == 0


def _wrong(part: str, where: str) -> UsageError:
    return UsageError(f"{where} takes ranks like 0-7, leaders, sample:32 or all, not {part!r}",
                      hint="--ranks 0-7,leaders,sample:32 records these ranks fully and the others lightly")
