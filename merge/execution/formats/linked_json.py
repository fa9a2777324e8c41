"""Execution traces joined with times as chakra_trace_link writes them: JSON that chakra_converter reads.

The converter knows communication by the names of NCCL's kernels, and by no other: communication that has such a name in
it, that of gloo included, gets it in front of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distprof.contract.group_ranks import ranks_of
from distprof.files import told, write_whole
from distprof.merge.execution.formats.chakra import VERSION
from distprof.merge.execution.formats.chakra_nodes import FIRST_ID, ExportContext, Written, stream_of
from distprof.merge.execution.nodes import NUMBERS, Node, Values
from distprof.merge.execution.rank_execution import RankExecution
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST

ROOT_ID = 1
"""Of the node that stands for all threads; the converter begins there."""
ROOT = Node(id=ROOT_ID, name="[pytorch|profiler|execution_trace|thread]", scope=7)
KERNELS = {"all_reduce": "AllReduce", "all_to_all": "AllToAll", "all_gather": "AllGather",
           "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast"}
"""Op -> its name in those of NCCL's kernels, of those that the converter knows; others end it with an error."""
OF_NCCL = re.compile("nccl(dev)?kernel", re.IGNORECASE)


def write_linked(path: Path, execution: RankExecution, context: ExportContext, to_common: Any) -> Written:
    """Writes the file of a rank; which dependencies there are the converter finds out.

    Raises:
        OutputError: It cannot be written.
    """
    def write(temporary: Path) -> None:
        with temporary.open("wb", 1 << 20) as file:
            file.write(msgspec.json.encode({"schema": VERSION, "pid": 0, "time": "", "start_ts": 0})[:-1])
            file.write(b',"nodes":[\n')
            file.write(_text(ROOT, {"ctrl_deps": 0}))
            for fields in _nodes(execution, context, to_common):
                file.write(b",\n" + fields)
            file.write(b'\n],"finish_ts":0}\n')

    with told(path):
        write_whole(path, write)
    return Written(nodes=len(execution.graph.name), dependencies=None,
                   communication=int(np.count_nonzero(execution.communication.place >= 0)))


def _nodes(execution: RankExecution, context: ExportContext, to_common: Any) -> Iterator[bytes]:
    graph, found = execution.graph, execution.communication
    start = to_common(graph.start_ns)
    communication = {place: (str(op), context.groups.get(ranks_of(group))) for place, op, group in zip(
        found.place.tolist(), found.rows["op"].to_list(), found.rows["group_ranks"].to_list(), strict=True)}
    for place in range(len(graph.name)):
        row, parent = int(graph.node[place]), int(graph.parent[place])
        node = graph.table.texts.node(row) if graph.table is not None and row >= 0 else Node(
            id=0, name=graph.names[graph.name[place]])
        node.id = place + FIRST_ID
        fields: dict[str, Any] = {
            "ctrl_deps": parent + FIRST_ID if parent >= 0 else ROOT_ID, "ts": int(start[place]) // 1000,
            "inclusive_dur": int(graph.duration_ns[place]) / 1000, "exclusive_dur": int(graph.self_ns[place]) / 1000,
            "inter_thread_dep": None}
        op, group = communication.get(place, ("", None))
        on_device = graph.type[place] >= NUM_HOST
        if on_device or op in KERNELS:
            fields |= {"cat": "kernel", "ph": "X", "stream": stream_of(graph, place)}
            node.name = f"ncclDevKernel_{KERNELS[op]}: {node.name}" if op in KERNELS else OF_NCCL.sub("", node.name)
            if group is not None:
                fields["pg_name"] = str(group)
        yield _text(node, fields)


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
