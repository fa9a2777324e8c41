"""Finds the Python calls that each slice of a rank lies in, if the profiler recorded them (`with_stack=True`)."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers
from distprof.merge.activity.markers import AUTOGRAD
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, PYTHON, RankTimeline
from distprof.merge.scan.scanned_columns import NONE

FRAME = re.compile(r"(?!nn\.Module: |<built-in )"
                   r"(?!.*torch[/\\]nn[/\\]modules[/\\]module\.py\(\d+\): _(wrapped_)?call_impl$)"
                   r".*\(\d+\): .*", re.DOTALL)
"""Matches functions in a file, except for the two that every call of a module goes through."""
FROM = " < "
"""Separates a function from its caller."""


class PythonStacks:
    """The stack of each slice: the functions around it on its thread.

    What backward runs has the stack of the operator that made the autograd node, if known, below the functions that
    backward itself calls.
    """

    def __init__(self, timeline: RankTimeline) -> None:
        """Finds the stacks; the timeline must have Python calls."""
        self._frames: list[tuple[int, int]] = [(-1, 0)]  # a name, and the stack around it; 0 is the empty one
        self._numbers: dict[tuple[int, int], int] = {}
        self._names = timeline.names
        nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
        names = [FRAME.fullmatch(name) is not None for name in timeline.names] or [False]
        is_frame = (timeline.type == PYTHON) & np.array(names)[timeline.name]
        is_node = np.array([name.startswith(AUTOGRAD) for name in timeline.names] or [False])[timeline.name]
        self.number = np.zeros(len(timeline.name), np.int64)
        """For each slice, the number of its stack; 0 for the empty one."""
        made = np.full(len(timeline.name), -1, np.int64)
        for turn in range(2):  # forward first: it makes the nodes that backward runs
            for rows, parents in nesting.downwards():
                around = np.where(parents >= 0, self.number[parents], 0)
                around = np.where(made[rows] >= 0, made[rows], around)
                self.number[rows] = self._within(timeline.name[rows], around, is_frame[rows])
            if turn == 0:
                made = self._makers(timeline, nesting, is_node)

    def innermost(self, num_frames: int) -> tuple[list[str | None], Integers]:
        """Returns stacks of up to `num_frames` functions, None for the empty one, and which one each slice has."""
        texts = dict[str | None, int]()
        short = []
        for number in range(len(self._frames)):
            found, at = list[str](), number
            while at and len(found) < num_frames:
                name, at = self._frames[at]
                found.append(self._names[name])
            short.append(texts.setdefault(FROM.join(found) or None, len(texts)))
        return list(texts), np.array(short, np.int64)[self.number]

    def _within(self, name: Integers, around: Integers, is_frame: Flags) -> Integers:
        """Returns the stacks in which the slices of these names are or, if they are functions, which they form."""
        found, rows = around.copy(), np.flatnonzero(is_frame)
        kinds, kind = np.unique(np.stack([name[rows], around[rows]], axis=1), axis=0, return_inverse=True)
        numbers = np.zeros(len(kinds), np.int64)
        for place, (one, outer) in enumerate(kinds.tolist()):
            numbers[place] = self._numbers.setdefault((one, outer), len(self._frames))
            if numbers[place] == len(self._frames):
                self._frames.append((one, outer))
        found[rows] = numbers[kind.reshape(-1)]
        return found

    def _makers(self, timeline: RankTimeline, nesting: Nesting, is_node: Flags) -> Integers:
        """Returns the stack of what made the node that a slice runs; -1 for other slices, and if unknown."""
        inside = is_node.copy()
        for rows, parents in nesting.downwards():
            inside[rows] |= (parents >= 0) & inside[parents] & (timeline.type[rows] != PYTHON)
        made = np.flatnonzero((timeline.sequence != NONE) & (timeline.sequence >= 0) & ~inside)
        found, nodes = np.full(len(inside), -1, np.int64), np.flatnonzero(is_node)
        calls = pl.DataFrame({"sequence": timeline.sequence[made], "thread": timeline.thread[made],
                              "stack": self.number[made]})
        # operators that make no node have the number of the next one
        here = calls.unique(["sequence", "thread"], keep="last", maintain_order=True)
        # each thread numbers its own nodes: a number of another thread counts only if no second thread has used it
        there = here.filter(pl.len().over("sequence") == 1).select("sequence", there="stack")
        wanted = pl.DataFrame({"sequence": timeline.sequence[nodes], "thread": timeline.thread[nodes]})
        wanted = wanted.join(here, on=["sequence", "thread"], how="left", maintain_order="left").join(
            there, on="sequence", how="left", maintain_order="left")
        found[nodes] = wanted.select(pl.coalesce("stack", "there").fill_null(-1)).to_series().to_numpy()
        return found
