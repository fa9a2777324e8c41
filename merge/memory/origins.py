"""What ran on a thread at a moment: the innermost slice, and the operator that the script called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.activity.markers import AUTOGRAD, COMMUNICATION, MODULE
from distprof.merge.operators.places import Places
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import ANNOTATION, OPERATOR, RankTimeline

BUFFERS = (*COMMUNICATION, "FSDP::all_gather", "FSDP::post_backward_reduce")
"""Beginnings of names of slices in which buffers of collectives are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """What each slice lies in, as numbers of slices; -1 for none."""

    operator: Any
    """The outermost operator, functions of the autograd engine apart."""
    model: Any
    """The outermost module call."""
    communicates: Any
    """True inside a collective."""


def outer_of(timeline: RankTimeline, nesting: Nesting) -> Outer:
    """Goes from outer slices to inner ones."""
    size = len(timeline.name)
    operator, model, communicates = np.full(size, -1), np.full(size, -1), np.zeros(size, bool)
    engine, module, talks = (np.array([*map(test, timeline.names), False], bool)[timeline.name]
                             for test in (_is_engine, _is_module, _is_communication))
    for rows, parents in nesting.downwards():
        known = parents >= 0
        operator[rows] = np.where(known, operator[parents], -1)
        model[rows] = np.where(known, model[parents], -1)
        communicates[rows] = (known & communicates[parents]) | talks[rows]
        begins = (timeline.type[rows] == OPERATOR) & ~engine[rows] & (operator[rows] < 0)
        operator[rows] = np.where(begins, rows, operator[rows])
        enters = (timeline.type[rows] == ANNOTATION) & module[rows] & (model[rows] < 0)
        model[rows] = np.where(enters, rows, model[rows])
    return Outer(operator=operator, model=model, communicates=communicates)


def place_at(places: Places, row: Any) -> tuple[Any, Any]:
    """Number of the phase and of the module of slices; 0 and -1 where there is none."""
    if not len(places.phase):
        return np.zeros(len(row), np.int64), np.full(len(row), -1)
    return np.where(row >= 0, places.phase[row], 0), np.where(row >= 0, places.module[row], -1)


def _is_engine(name: str) -> bool:
    return name.startswith(AUTOGRAD)


def _is_module(name: str) -> bool:
    return MODULE.fullmatch(name) is not None


def _is_communication(name: str) -> bool:
    return name.startswith(BUFFERS)
