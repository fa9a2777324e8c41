"""What is noted, as frames: the names of a frame's samples are numbered within it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from distprof.contract.watch import Frame, Note, SampledStep, StepRows
from distprof.recording.watch.rows import Row
from distprof.recording.watch.sampled_steps import FoundSample


def frame_of(rows: Sequence[Row], samples: Sequence[FoundSample], notes: Iterable[Note]) -> Frame:
    """A frame of these."""
    groups: dict[str, tuple[int, list[int]]] = {}
    names: dict[str, int] = {}
    columns = StepRows(**{name: [row[name] for row in rows] for name in StepRows.__struct_fields__})
    numbered = [_numbered(one, groups, names) for one in samples]
    return Frame(rows=columns, samples=numbered, notes=list(notes),
                 groups=[(name, ranks) for name, (_, ranks) in groups.items()], names=list(names))


def _numbered(found: FoundSample, groups: dict[str, tuple[int, list[int]]], names: dict[str, int]) -> SampledStep:
    return msgspec.structs.replace(
        found.step,
        group=[groups.setdefault(name, (len(groups), ranks))[0] for name, ranks in found.groups],
        op=[names.setdefault(op, len(names)) for op in found.ops])
