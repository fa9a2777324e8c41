"""Writes execution traces joined with times as chakra_trace_link does: JSON that chakra_converter reads.

chakra_converter (mlc-chakra 1.0.0, src/converter) recognises communication by names: of NCCL's kernels, and of the call
around sends and receives. Communication that it can recognise is given such names; it takes the rest for computation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distprof.arrays import Integers
from distprof.files import told, write_whole
from distprof.merge.execution.formats.chakra import VERSION
from distprof.merge.execution.formats.chakra_nodes import stream_of
from distprof.merge.execution.nodes import NUMBERS, Node, Values
from distprof.merge.execution.process_groups import GROUPS_NAME, ExportContext, Written, list_of_groups
from distprof.merge.execution.rank_execution import RankExecution
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST

KERNELS = {"all_reduce": "AllReduce", "all_to_all": "AllToAll", "all_gather": "AllGather",
           "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast"}
"""Op -> its part of a kernel's name, in the order in which the converter looks for them."""
OF_NCCL = re.compile("nccl(dev)?kernel", re.IGNORECASE)
"""If a kernel's name contains this and no op that the converter knows, the converter fails."""
KERNEL = re.compile("ncclKernel|ncclDevKernel")
BEGIN, SEND_RECV = "ncclDevKernel_", "ncclDevKernel_SendRecv"
AROUND = {"send": "c10d::send", "recv": "c10d::recv_"}
"""Op -> name of the enclosing call by which the converter recognises it."""
ELEMENTS, ITEM = 3, 4
"""Indices in a recorded tensor."""


def is_read(op: str) -> bool:
    """Returns whether the converter can recognise this op."""
    return op in KERNELS or op in AROUND


def name_of(op: str, recorded: str) -> str:
    """Returns a kernel name that is read as the op; it contains the recorded name unless that would be misread."""
    if op in AROUND:
        return recorded if SEND_RECV in recorded else f"{SEND_RECV}: {recorded}"
    if KERNEL.search(recorded) and _is_read_as(op, recorded):
        return recorded
    name = f"{BEGIN}{KERNELS[op]}"
    return both if _is_read_as(op, both := f"{name}: {recorded}") else name


def _is_read_as(op: str, name: str) -> bool:
    plain = name.replace("_", "").replace("-", "").lower()
    return SEND_RECV not in name and next((one for one, word in KERNELS.items() if word.lower() in plain), None) == op


def name_around(op: str) -> str | None:
    """Returns the name that the call around the op must have; None if any name will do."""
    return AROUND.get(op)


def read_around(name: str) -> str | None:
    """Returns the op as which the converter reads a send or receive inside a call of this name; None for neither."""
    return next((op for op in AROUND if op in name), None)


def read_bytes(values: object, types: object) -> int | None:
    """Returns the bytes that the converter reads from inputs; None if they make it fail."""
    if not isinstance(values, list) or not isinstance(types, list):
        return None
    found = 0
    try:
        for value, kind in zip(values, types, strict=False):
            if "Tensor" in kind:
                some = value if kind.startswith("GenericList[Tensor") else [value]
                found += sum(one[ELEMENTS] * one[ITEM] for one in some)
    except (TypeError, IndexError, KeyError, AttributeError):
        return None
    return found if type(found) is int else None


ROOT_ID, GROUPS_ID, FIRST_ID = 1, 2, 4
"""Ids of the node that stands for all threads, where the converter begins; of the list of groups; and of the first
call. Before the id of each call, one id is free for an added node around it."""
ROOT = Node(id=ROOT_ID, name="[pytorch|profiler|execution_trace|thread]", scope=7)


def write_linked(path: Path, execution: RankExecution, context: ExportContext,
                 to_common: Callable[[Integers], Integers]) -> Written:
    """Writes the file of a rank. Dependencies are not written, because the converter finds them itself.

    Raises:
        OutputError: The file cannot be written.
    """
    linked = _Linked(execution=execution, context=context, communication=_communication(execution, context),
                     start=to_common(execution.graph.start_ns))

    def write(temporary: Path) -> None:
        with temporary.open("wb", 1 << 20) as file:
            file.write(msgspec.json.encode({"schema": VERSION, "pid": 0, "time": "", "start_ts": 0})[:-1])
            file.write(b',"nodes":[\n' + _text(ROOT, {"ctrl_deps": 0}) + b",\n" + _groups(context))
            for text in linked.nodes():
                file.write(b",\n" + text)
            file.write(b'\n],"finish_ts":0}\n')

    with told(path):
        write_whole(path, write)
    return linked.written()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A communication call."""

    op: str
    group: int | None
    num_bytes: int | None
    issued_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linked:
    """Creates the nodes of a rank."""

    execution: RankExecution
    context: ExportContext
    communication: Mapping[int, _Call]
    """The communication calls by place."""
    start: Integers

    def nodes(self) -> Iterator[bytes]:
        """Yields the texts of all nodes in order of start."""
        for place in range(len(self.execution.graph.name)):
            around = self._around(place)
            if around is not None:
                yield around
            yield self._node(place)

    def written(self) -> Written:
        """Counts what the converter finds in the file."""
        graph = self.execution.graph
        read = [one for one in self.communication.values() if is_read(one.op)]
        written = Written(
            nodes=len(graph.name) + sum(self._needs_node(place) for place in self.communication), dependencies=None,
            communication=len(read), without_group=sum(one.group is None for one in read),
            untimed=int(np.count_nonzero((graph.slice < 0) & (graph.node >= 0))))
        written.unread.update(one.op for one in self.communication.values() if not is_read(one.op))
        return written

    def _node(self, place: int) -> bytes:
        graph, call = self.execution.graph, self.communication.get(place)
        row, recorded = int(graph.node[place]), graph.names[graph.name[place]]
        node = graph.table.texts.node(row) if graph.table is not None and row >= 0 else Node(id=0, name=recorded)
        node.id = place * 2 + FIRST_ID
        fields: dict[str, Any] = {
            "ctrl_deps": self._parent(place), "ts": int(self.start[place]) // 1000,
            "inclusive_dur": int(graph.duration_ns[place]) / 1000, "exclusive_dur": int(graph.self_ns[place]) / 1000,
            "inter_thread_dep": None}
        if self._on_device(place):
            fields |= {"cat": "kernel", "ph": "X", "stream": stream_of(graph, place)}
            node.name = name_of(call.op, recorded) if call and is_read(call.op) else OF_NCCL.sub("", recorded)
        if call and is_read(call.op):
            fields |= {"pg_name": str(call.group)} if call.group is not None else {}
            node.inputs = _sized(node.inputs, call.num_bytes)
        return _text(node, fields)

    def _on_device(self, place: int) -> bool:
        """Returns whether the converter must take it for device work, which it also expects communication to be."""
        call = self.communication.get(place)
        return bool(self.execution.graph.type[place] >= NUM_HOST) or (call is not None and is_read(call.op))

    def _parent(self, place: int) -> int:
        """Returns the id of the enclosing node. The converter loses device work inside device work."""
        if self._needs_node(place):
            return place * 2 + FIRST_ID - 1
        above = self._above(place)
        return above * 2 + FIRST_ID if above >= 0 else ROOT_ID

    def _above(self, place: int) -> int:
        parent, call = self._on_host(int(self.execution.graph.parent[place]), place), self.communication.get(place)
        if call is None or self._is_read_in(call.op, parent):
            return parent
        issuer = self._on_host(call.issued_by, place)
        return issuer if self._is_read_in(call.op, issuer) else parent

    def _on_host(self, at: int, place: int) -> int:
        """Returns `at` or the nearest call around it; the nearest one on the host if `place` is on a device."""
        while at >= 0 and self._on_device(place) and self._on_device(at):
            at = int(self.execution.graph.parent[at])
        return at

    def _is_read_in(self, op: str, place: int) -> bool:
        graph = self.execution.graph
        name = graph.names[graph.name[place]] if place >= 0 else ROOT.name
        return name_around(op) is None or read_around(name) == op

    def _needs_node(self, place: int) -> bool:
        call = self.communication.get(place)
        return call is not None and not self._is_read_in(call.op, self._above(place))

    def _around(self, place: int) -> bytes | None:
        """Returns the added node by which the converter recognises the call inside it; None if a call does."""
        if not self._needs_node(place):
            return None
        name, above = name_around(self.communication[place].op), self._above(place)
        assert name is not None
        return _text(Node(id=place * 2 + FIRST_ID - 1, name=name), {
            "ctrl_deps": above * 2 + FIRST_ID if above >= 0 else ROOT_ID, "ts": int(self.start[place]) // 1000,
            "inclusive_dur": 0, "exclusive_dur": 0, "inter_thread_dep": None})


def _communication(execution: RankExecution, context: ExportContext) -> dict[int, _Call]:
    found = execution.communication
    rows = found.rows.select("op", "group", "group_ranks", "collective", "size_bytes").iter_rows(named=True)
    return {place: _Call(op=str(row["op"]), group=context.groups.number(row), issued_by=issuer,
                         num_bytes=context.sizes.get(row["collective"], row["size_bytes"]))
            for place, issuer, row in zip(found.place.tolist(), found.issued_by.tolist(), rows, strict=True)
            if place >= 0}


def _sized(recorded: Values, num_bytes: int | None) -> Values:
    """Returns inputs whose bytes, as the converter adds them up, are those that were sent."""
    found = _values(recorded)
    if num_bytes is None or read_bytes(found["values"], found["types"]) == num_bytes:
        return recorded if read_bytes(found["values"], found["types"]) is not None else Values()
    return Values(values=msgspec.Raw(json.dumps([[0, 0, 0, num_bytes, 1, "cpu"]]).encode()),
                  shapes=msgspec.Raw(json.dumps([[num_bytes]]).encode()), types=msgspec.Raw(b'["Tensor(byte)"]'))


def _groups(context: ExportContext) -> bytes:
    inputs = Values(values=msgspec.Raw(json.dumps([list_of_groups(context.groups)]).encode()),
                    shapes=msgspec.Raw(b"[[]]"), types=msgspec.Raw(b'["String"]'))
    return _text(Node(id=GROUPS_ID, name=GROUPS_NAME, inputs=inputs), {"ctrl_deps": ROOT_ID})


def _text(node: Node, fields: dict[str, Any]) -> bytes:
    attributes = [{"name": name, "type": "int64" if default < 0 else "uint64", "value": getattr(node, name)}
                  for name, default in NUMBERS.items()]
    attributes.append({"name": "op_schema", "type": "string", "value": node.op_schema})
    return msgspec.json.encode({"id": node.id, "name": node.name, **fields, "inputs": _values(node.inputs),
                                "outputs": _values(node.outputs), "attrs": attributes})


def _values(recorded: Values) -> dict[str, Any]:
    found = {}
    for name in ("values", "shapes", "types"):
        try:
            found[name] = json.loads(bytes(getattr(recorded, name)))
        except ValueError:
            found[name] = []
    return found
