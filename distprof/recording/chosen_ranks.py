"""Which ranks are recorded fully, from `--ranks 0-7,leaders,sample:32`; the others are recorded lightly.

Each rank decides for itself, from what all ranks know; this needs no communication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from distprof.contract.mesh import DATA_PARALLEL
from distprof.errors import UsageError
from distprof.process.identity import Identity
from distprof.process.topology import Topology

VARIABLE = "DISTPROF_RANKS"
ALL, LEADERS, SAMPLE = "all", "leaders", "sample"
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_SAMPLE = re.compile(rf"{SAMPLE}:(\d+)")
KNOWN_BASES = ("given", "mesh", "framework")
"""Bases of a topology whose coordinates show which part of the model a rank holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRanks:
    """The parsed `--ranks`; a rank is recorded fully if at least one part selects it."""

    text: str
    """As the user gave it."""
    spans: tuple[tuple[int, int], ...] = ()
    """First and last rank of each range."""
    leaders: bool = False
    sample: int = 0
    """Number of ranks, spread evenly over the job; 0 for none."""
    every: bool = False

    @classmethod
    def parse(cls, text: str, *, where: str = "--ranks") -> ChosenRanks:
        """Parses `0-7,leaders,sample:32` or `all`.

        Raises:
            UsageError: A part has another form.
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
        """Parses DISTPROF_RANKS; None if it is unset or empty.

        Raises:
            UsageError: Its value names no ranks.
        """
        text = environ.get(VARIABLE, "")
        return cls.parse(text, where=VARIABLE) if text else None

    def are_with(self, own: Identity, topology: Topology | None) -> bool:
        """Returns whether a rank is selected.

        Args:
            own: Identity of the rank.
            topology: Its position in the device mesh; None if that is not known yet.
        """
        return (self.every or any(first <= own.rank <= last for first, last in self.spans)
                or own.rank in spread(self.sample, own.world_size) or (self.leaders and _leads(own, topology)))


def spread(number: int, num_ranks: int) -> frozenset[int]:
    """Returns `number` evenly spaced ranks, beginning with the first; all ranks if there are not more."""
    return frozenset(index * num_ranks // number for index in range(number)) if number else frozenset()


def _leads(own: Identity, topology: Topology | None) -> bool:
    """Selects one rank per part of the model, the first along data-parallel axes; if parts are not known, one per
    host."""
    if topology is None or topology.basis not in KNOWN_BASES:
        return own.local_rank == 0
    return not any(topology.coordinates.get(axis, 0) for axis in DATA_PARALLEL)


def _wrong(part: str, where: str) -> UsageError:
    return UsageError(f"{where} takes ranks like 0-7, leaders, sample:32 or all, not {part!r}",
                      hint="--ranks 0-7,leaders,sample:32 records these ranks fully and the others lightly")
