"""Reads what the watch of a rank logged."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distprof.merge.watch.pieces import Columns, Piece, RankReader


def noted(run: Path, rank: int = 0) -> Piece:
    """Returns everything that a rank has logged so far."""
    return RankReader(run / f"rank{rank:05d}").new()


def steps_of(columns: Columns) -> list[int]:
    """Returns the steps that the rows cover; checks that these are consecutive."""
    first, number = columns["first_step"], columns["num_steps"]
    assert (first[1:] == (first + number)[:-1]).all()
    return [*range(int(first[0]), int(first[-1] + number[-1]))] if len(first) else []


def per_step(columns: Columns, name: str) -> float:
    """Returns the mean of a column per step in ms, without the first row."""
    values, number = columns[name][1:], columns["num_steps"][1:]
    assert (values >= 0).all(), name
    return float(np.sum(values) / np.sum(number)) / 1e6
