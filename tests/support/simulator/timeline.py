"""The events of a simulated rank, as torch's profiler names what a thread does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from distprof.contract.tables import WAIT_SLICE
from support.simulator.engine import Done
from support.simulator.program import Call, Close, Fetch, Open, StepEnd, Wait, Work

EVALUATE = "autograd::engine::evaluate_function: "
OPTIMIZER = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
USER, OPERATOR = "user_annotation", "cpu_op"


class Timeline:
    """Slices in the order in which they begin.

    Args:
        done: What a thread did.
        hides_waits: Whether waits leave no slice.
    """

    def __init__(self, done: Sequence[Done], *, hides_waits: bool) -> None:
        self.names: list[str] = []
        self.categories: list[str] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.sequence_numbers: list[int | None] = []
        self.forward_threads: list[int | None] = []
        self._open: list[int] = []
        self._nodes: dict[str | None, int] = {}
        """Sequence number that the last forward of a module left for its backward."""
        for one in done:
            if type(one.instruction) is not Call:
                self._add(one, hides_waits)

    def columns(self, ends: Sequence[int], began_ns: int) -> dict[str, pa.Array]:
        """Columns of `EVENTS` that are not null."""
        starts, num_rows = np.array(self.starts, dtype=np.int64), len(self.starts)
        return {
            "name": pa.array(self.names, pa.string()), "category": pa.array(self.categories, pa.string()),
            "start_ns": integers(began_ns + starts), "duration_ns": integers(np.array(self.ends, np.int64) - starts),
            "step": integers(np.searchsorted(ends, starts, "right")),
            "process": pa.array(["1"] * num_rows), "thread": pa.array(["1"] * num_rows),
            "sequence_number": integers(self.sequence_numbers), "forward_thread": integers(self.forward_threads)}

    def _add(self, one: Done, hides_waits: bool) -> None:
        what = one.instruction
        match what:
            case Work():
                self._add_work(what, one)
            case Wait():
                if what.shown and not hides_waits:
                    name, category = (("_c10d_functional::wait_tensor", OPERATOR) if what.operator
                                      else (WAIT_SLICE, USER))
                    self._slice(one, name, category)
            case Open():
                self._open.append(len(self.starts))
                node, thread = (self._node(what.where), 1) if what.name.startswith(EVALUATE) else (None, 0)
                self._slice(one, what.name, what.category, node, thread if what.category == OPERATOR else None)
            case Close():
                self.ends[self._open.pop()] = one.end_ns
            case Fetch():
                self._slice(one, LOADER.format("MultiProcessing"), USER)
            case StepEnd():
                self._nodes.clear()

    def _add_work(self, work: Work, one: Done) -> None:
        match work.kind:
            case "forward":
                if not self._inside(f"{work.where} [Layer]"):
                    self._slice(one, f"{work.where} [Layer]", USER)
                self._nodes[work.where] = len(self.starts)
                self._slice(one, "aten::addmm", OPERATOR, len(self.starts), 0)
            case "backward" if self._inside(EVALUATE):
                self._slice(one, "aten::mm", OPERATOR, None, 0)
            case "backward":
                self._slice(one, f"{EVALUATE}AddmmBackward0", OPERATOR, self._node(work.where), 1)
            case "data":
                self._slice(one, LOADER.format("SingleProcess"), USER)
                self._slice(one, "aten::stack", OPERATOR, None, 0)
            case "zero_grad":
                self._slice(one, "Optimizer.zero_grad#SGD.zero_grad", USER)
            case "optimizer":
                if not self._inside(OPTIMIZER):
                    self._slice(one, f"{OPTIMIZER}SGD.step", USER)
                self._slice(one, "aten::_foreach_add_", OPERATOR, None, 0)

    def _slice(self, one: Done, name: str, category: str, sequence_number: int | None = None,
               forward_thread: int | None = None) -> None:
        self.names.append(name)
        self.categories.append(category)
        self.starts.append(one.start_ns)
        self.ends.append(one.end_ns)
        self.sequence_numbers.append(sequence_number)
        self.forward_threads.append(forward_thread)

    def _inside(self, prefix: str) -> bool:
        return any(self.names[row].startswith(prefix) for row in self._open)

    def _node(self, where: str | None) -> int:
        return self._nodes.setdefault(where, len(self.starts))


def integers(values: Sequence[int | None] | np.ndarray) -> pa.Array:
    """A column; from a list, since for an array of numpy pyarrow looks for pandas each time."""
    return pa.array(values.tolist() if isinstance(values, np.ndarray) else values, pa.int64())
