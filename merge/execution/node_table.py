"""An execution trace as columns, for what is needed of all nodes at once."""

from __future__ import annotations

import weakref
from array import array
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.execution.dependencies.tensor_uses import uses_of
from distprof.merge.execution.nodes import Node, NodeFile, node_of
from distprof.merge.scan.trace_file import TraceFile

READS, WRITES = 1, 2
"""Bit flags for how a call uses a storage."""
ON_HOST = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """Nodes sorted by id. Arrays have one value per node, except those of storage uses."""

    id: Array
    parent: Integers
    """Row of the enclosing node; -1 for none, or if it is not in the file."""
    function: Integers
    """`rf_id`."""
    sequence: Integers
    thread: Integers
    """`tid`."""
    forward: Integers
    """Row of the forward node; -1 for none."""
    name: Integers
    """Index into `names`."""
    names: list[str]
    texts: NodeTexts
    use_begin: Integers
    """Index of the first use of each node in the `use_` arrays, and their length; one value more than nodes."""
    use_storage: Integers
    """Number of the storage of each use."""
    use_kind: Array
    """`READS`, `WRITES` or both."""
    use_on_device: Flags
    file: NodeFile
    num_dangling: int
    """Nodes whose parent is not in the file."""
    num_repeated: int
    """Nodes that were left out because another one has the same id."""


class NodeTexts:
    """The JSON texts of all nodes, in a temporary file."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 (it lives as long as this)
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._place: Any = None

    def add(self, text: bytes) -> None:
        """Appends the text of the next node of the file."""
        self._file.write(text)
        self._ends.append(self._ends[-1] + len(text))

    def sorted_as(self, place: Integers) -> NodeTexts:
        """Sets the order of rows after the last node was added; `place` has each row's index in the file."""
        self._place = place
        return self

    def node(self, row: int) -> Node:
        """Parses the node of a row."""
        at = int(self._place[row])
        self._file.seek(self._ends[at])
        found = node_of(self._file.read(self._ends[at + 1] - self._ends[at]))
        assert found is not None  # it was one when it was added
        return found


class _Columns:
    def __init__(self) -> None:
        self.id, self.parent, self.forward = array("Q"), array("Q"), array("Q")
        self.function, self.sequence, self.thread = array("q"), array("q"), array("q")
        self.name, self.uses = array("q"), array("q")
        self.storage, self.kind, self.device = array("q"), array("b"), array("b")
        self.names: dict[str, int] = {}
        self._storages: dict[int, int] = {}

    def add(self, node: Node) -> None:
        self.id.append(node.id)
        self.parent.append(node.parent)
        self.forward.append(node.fw_parent if node.fw_parent > 0 else 0)
        for column, value in ((self.function, node.rf_id), (self.sequence, node.seq_id), (self.thread, node.tid)):
            column.append(value if -2**63 <= value < 2**63 else -1)
        self.name.append(self.names.setdefault(node.name, len(self.names)))
        uses = uses_of(node)
        self.uses.append(len(uses))
        for use in uses:
            self.storage.append(self._storages.setdefault(use.tensor.storage, len(self._storages)))
            self.kind.append(READS * use.reads + WRITES * use.writes)
            self.device.append(not use.tensor.device.startswith(ON_HOST))


def read_table(trace: TraceFile) -> NodeTable:
    """Reads a whole execution trace.

    Raises:
        DataError: The file is not an execution trace.
    """
    file, columns, texts = NodeFile(trace), _Columns(), NodeTexts()
    for node, text in file.nodes():
        columns.add(node)
        texts.add(text)
    return _table(file, columns, texts)


def _table(file: NodeFile, columns: _Columns, texts: NodeTexts) -> NodeTable:
    ids = np.frombuffer(columns.id, np.uint64) if columns.id else np.empty(0, np.uint64)
    numbers, first = np.unique(ids, return_index=True)
    uses = np.concatenate(([0], np.cumsum(columns.uses))).astype(np.int64)
    counts = np.diff(uses)[first]
    begin = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    chosen = np.repeat(uses[:-1][first] - begin[:-1], counts) + np.arange(begin[-1])
    parent, dangling = _rows_of(numbers, np.array(columns.parent, np.uint64)[first])
    forward, _ = _rows_of(numbers, np.array(columns.forward, np.uint64)[first])
    return NodeTable(
        id=numbers, parent=_acyclic(parent), forward=forward, texts=texts.sorted_as(first), names=list(columns.names),
        function=np.array(columns.function, np.int64)[first], sequence=np.array(columns.sequence, np.int64)[first],
        thread=np.array(columns.thread, np.int64)[first], name=np.array(columns.name, np.int64)[first],
        use_begin=begin, use_storage=np.array(columns.storage, np.int64)[chosen],
        use_kind=np.array(columns.kind, np.int8)[chosen], use_on_device=np.array(columns.device, bool)[chosen],
        file=file, num_dangling=dangling, num_repeated=len(ids) - len(numbers))


def _rows_of(numbers: Array, wanted: Array) -> tuple[Integers, int]:
    """Returns the rows of these ids, -1 for missing ones, and the number of missing ids other than 0."""
    place = np.minimum(np.searchsorted(numbers, wanted), max(len(numbers) - 1, 0))
    found = (numbers[place] == wanted) if len(numbers) else np.zeros(0, bool)
    return np.where(found & (wanted > 0), place, -1).astype(np.int64), int(np.count_nonzero(~found & (wanted > 0)))


def _acyclic(parent: Integers) -> Integers:
    """Returns the parents without cycles: in each cycle, one node loses its parent."""
    found, state = parent.copy(), np.zeros(len(parent), np.int8)  # 1: on the current path, 2: known to reach a root
    for row in range(len(parent)):
        way, at = [], row
        while at >= 0 and not state[at]:
            state[at] = 1
            way.append(at)
            at = int(found[at])
        if at >= 0 and state[at] == 1:
            found[way[-1]] = -1
        state[way] = 2
    return found
