"""What the watch of a rank noted."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distprof.merge.watch.pieces import Columns, Piece, RankReader


def noted(run: Path, rank: int = 0) -> Piece:
    """All of a rank, by now."""
    return RankReader(run / f"rank{rank:05d}").new()


def steps_of(columns: Columns) -> list[int]:
    """The steps that the rows cover, which have to follow each other."""
    first, number = columns["first_step"], columns["num_steps"]
    assert (first[1:] == (first + number)[:-1]).all()
    return [*range(int(first[0]), int(first[-1] + number[-1]))] if len(first) else []


def per_step(columns: Columns, name: str) -> float:
    """Mean of a column over steps, ms; without the first row."""
    values, number = columns[name][1:], columns["num_steps"][1:]
    assert (values >= 0).all(), name
    return float(np.sum(values) / np.sum(number)) / 1e6
