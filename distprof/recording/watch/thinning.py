"""Makes room in a rank's watch: joins two old pieces into one with half as many rows, each covering more steps.

It runs in a separate process. A reader always finds each piece complete, or what replaced it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distprof.contract.watch import (
    Frame,
    Note,
    SampledStep,
    StepRows,
    encoded,
    frames,
    is_sampled,
    joined,
    sparseness,
)

NAME = "watch-{:03d}.bin"
AT_ONCE = 4096
"""Maximum number of rows in a frame that is rewritten."""


def pieces_in(folder: Path) -> list[Path]:
    """Returns the pieces in order."""
    found = [path for path in folder.glob("watch-*.bin") if path.stem.removeprefix("watch-").isdecimal()]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("watch-")))


def thin(folder: Path, most_bytes: int) -> int:
    """Thins closed pieces until all pieces fit or nothing is left to thin; returns the bytes that they take.

    Args:
        folder: The rank's folder. The last piece is still written to and is left alone, as is the one before, which
            the job's watcher may not have read yet.
        most_bytes: Limit for all pieces together.

    Raises:
        OSError: The folder cannot be written.
    """
    while (taken := sum(path.stat().st_size for path in pieces_in(folder))) > most_bytes:
        closed = pieces_in(folder)[:-2]
        if not closed:
            return taken
        sizes = [path.stat().st_size for path in closed]
        # the pair of neighbours that takes least room, the oldest of equal ones: it has been thinned least often
        pairs = range(len(closed) - 1)
        first = min(pairs, key=lambda place: sizes[place] + sizes[place + 1], default=0)
        if _thin_together(closed[first:first + 2]) >= sum(sizes[first:first + 2]):
            return taken
    return taken


def _thin_together(paths: Sequence[Path]) -> int:
    """Replaces the first file by the thinned content of all of them; returns its size in bytes."""
    every = [frame for path in paths for _, frame in frames(path.read_bytes())]
    content = b"".join(map(encoded, thinned(every)))
    beside = paths[0].with_suffix(".tmp")
    beside.write_bytes(content)
    os.replace(beside, paths[0])  # noqa: PTH105 (atomic: another process may be reading it)
    for path in paths[1:]:
        path.unlink()
    return len(content)


def thinned(every: Sequence[Frame]) -> list[Frame]:
    """Returns frames of the same steps, with half as many rows and samples."""
    rows = StepRows(**{name: [value for frame in every for value in getattr(frame.rows, name)]
                       for name in StepRows.__struct_fields__})
    groups, names, samples = _renumbered(every)
    notes = [note for frame in every for note in frame.notes if note.kind != "thinned"]
    if rows.first_step:
        notes.append(Note(time_ns=rows.end_ns[-1], step=rows.first_step[-1] + rows.num_steps[-1] - 1, kind="thinned",
                          text=f"from step {rows.first_step[0]} on"))
    half = _halved(rows)
    parts = [StepRows(**{name: getattr(half, name)[begin:begin + AT_ONCE] for name in StepRows.__struct_fields__})
             for begin in range(0, len(half.first_step), AT_ONCE)]
    first = parts[0] if parts else StepRows()
    return [Frame(rows=first, samples=samples, notes=notes, groups=groups, names=names),
            *(Frame(rows=part) for part in parts[1:])]


def _halved(rows: StepRows) -> StepRows:
    """Joins pairs of rows, except those with a gap between them."""
    found: dict[str, list[int]] = {name: [] for name in StepRows.__struct_fields__}
    place, number = 0, len(rows.first_step)
    while place < number:
        follows = place + 1 < number and rows.first_step[place + 1] == rows.first_step[place] + rows.num_steps[place]
        for name, value in joined(rows, place, place + follows).items():
            found[name].append(value)
        place += 1 + follows
    return StepRows(**found)


def _renumbered(every: Sequence[Frame]) -> tuple[list[tuple[str, list[int]]], list[str], list[SampledStep]]:
    """Returns groups and names of all frames, and every other sampled step: those that sampling half as often keeps."""
    steps = [sample.step for frame in every for sample in frame.samples]
    exponent = sparseness(steps) + 1
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    names: dict[str, int] = {}
    samples = [
        msgspec.structs.replace(
            sample,
            group=[groups.setdefault((frame.groups[one][0], tuple(frame.groups[one][1])), len(groups))
                   for one in sample.group],
            op=[names.setdefault(frame.names[one], len(names)) for one in sample.op])
        for frame in every for sample in frame.samples if is_sampled(sample.step, exponent)]
    return [(name, list(ranks)) for name, ranks in groups], list(names), samples
