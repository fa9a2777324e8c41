"""A made-up job as the files of its ranks, beside what was recorded of its first steps."""

from __future__ import annotations

from pathlib import Path

from distprof.contract.watch import Frame, Note, StepRows, encoded

from .job import Job
from .pieces import Ranks
from .play import play

ROWS = 15
"""Of a frame: 3 s."""


def write_watch(run: Path, job: Job, *, notes: tuple[Note, ...] = (), first_step: int = 0) -> None:
    """Appends the rows of all ranks to their folders, which are made where they are not there.

    Args:
        run: The run directory.
        job: Who is slow when.
        notes: Further ones of rank 0.
        first_step: By which all steps are moved: those before were recorded.
    """
    ranks = Ranks(play(job))
    for rank in range(job.world):
        folder = run / f"rank{rank:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        piece = ranks.new(rank, ranks.end_ns)
        for name in ("first_step", "longest_step"):
            piece.columns[name] = piece.columns[name] + first_step
        with (folder / "watch-000.bin").open("wb") as file:
            for begin in range(0, len(piece.columns["first_step"]), ROWS):
                rows = {name: values[begin:begin + ROWS].tolist() for name, values in piece.columns.items()}
                file.write(encoded(Frame(rows=StepRows(**rows))))
            for one in piece.samples:
                one.step.step += first_step
                file.write(encoded(Frame(samples=[one.step], groups=one.groups, names=one.names)))
            own = (Note(time_ns=one.time_ns, step=one.step + first_step, kind=one.kind) for one in piece.notes)
            file.write(encoded(Frame(notes=[*own, *(notes if rank == 0 else ())])))
