"""Builds the nodes of Chakra's schema from what ran on a rank, with FLOPs and bytes; writes one file per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distprof.arrays import Integers
from distprof.files import told, write_whole
from distprof.merge.execution.formats.chakra import (
    COMM_TYPES,
    VERSION,
    Attribute,
    ChakraNode,
    GlobalMetadata,
    NodeType,
    Values,
    delimited,
    rounded_us,
)
from distprof.merge.execution.linking import STREAM
from distprof.merge.execution.nodes import Node
from distprof.merge.execution.nodes import Values as RecordedValues
from distprof.merge.execution.process_groups import GROUPS_NAME, ExportContext, ProcessGroups, Written, list_of_groups
from distprof.merge.execution.rank_execution import RankExecution
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.grouped_calls import slice_costs
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST

GROUPS_ID = 1
FIRST_ID = 2
BUFFER_BYTES = 1 << 20
COMM_NODES = {"send": NodeType.COMM_SEND, "recv": NodeType.COMM_RECV}


def chakra_nodes(execution: RankExecution, context: ExportContext, to_common: Callable[[Integers], Integers],
                 written: Written) -> (Iterator[ChakraNode]):
    """Yields the nodes of a rank in order of start; counts them in `written`."""
    graph, found = execution.graph, execution.communication
    yield _groups_node(context.groups)
    row_of = {place: row for row, place in enumerate(found.place.tolist()) if place >= 0}
    start, work = _start_us(graph, to_common), work_of(graph)
    for place in range(len(graph.name)):
        row = row_of.get(place)
        comm = _communication(execution, row, context, written) if row is not None else None
        node = _node(execution, place, context, comm, None if comm else work.get(place), int(start[place]))
        written.nodes += 1
        written.dependencies = (written.dependencies or 0) + len(node.data)
        written.untimed += int(graph.slice[place] < 0 <= graph.node[place])
        yield node


def _node(execution: RankExecution, place: int, context: ExportContext,
          comm: tuple[NodeType, Sequence[Attribute]] | None, work: tuple[int, int | None] | None,
          start_us: int) -> ChakraNode:
    graph, parent = execution.graph, int(execution.graph.parent[place])
    kind, attributes = comm or (NodeType.COMP, [])
    recorded = graph.table.texts.node(int(graph.node[place])) if graph.table and graph.node[place] >= 0 else None
    return ChakraNode(
        id=place + FIRST_ID, name=graph.names[graph.name[place]], type=kind,
        control=[parent + FIRST_ID] if parent >= 0 else [],
        data=[one + FIRST_ID for one in execution.edges.of(place)], start_us=start_us,
        duration_us=rounded_us(int(graph.self_ns[place])),
        inputs=_values(recorded.inputs) if recorded else Values(),
        outputs=_values(recorded.outputs) if recorded else Values(),
        attributes=[*_place(execution, place, context, is_comm=comm is not None), *attributes, *_work(work),
                    *_recorded(recorded)])


def _start_us(graph: RankGraph, to_common: Callable[[Integers], Integers]) -> Any:
    """Returns start times since the epoch, on the clock of all ranks; 0 without a timeline."""
    if graph.timeline is None:
        return np.zeros(len(graph.name), np.int64)
    return np.maximum(to_common(graph.start_ns), 0) // 1000


def _groups_node(groups: ProcessGroups) -> ChakraNode:
    return ChakraNode(id=GROUPS_ID, name=GROUPS_NAME, type=NodeType.METADATA,
                      inputs=Values(values=f"['{list_of_groups(groups)}']", shapes="[[]]", types="['String']"))


def _place(execution: RankExecution, place: int, context: ExportContext, *, is_comm: bool) -> Iterator[Attribute]:
    graph = execution.graph
    on_host = bool(graph.type[place] < NUM_HOST)
    yield "is_cpu_op", "bool", on_host and not (is_comm and context.target == "astra-sim")
    if not on_host and graph.timeline is not None:
        yield "stream", "int64", stream_of(graph, place)
    if graph.duration_ns[place] != graph.self_ns[place]:
        yield "inclusive_duration_micros", "int64", rounded_us(int(graph.duration_ns[place]))


def stream_of(graph: RankGraph, place: int) -> int:
    """Returns the profiler's number of a kernel's stream; 0 if there is none."""
    if graph.timeline is None or graph.slice[place] < 0:
        return 0
    return max(int(graph.timeline.more[STREAM][graph.slice[place]]), 0)


def _work(work: tuple[int, int | None] | None) -> Iterator[Attribute]:
    if work is None:
        return
    yield "num_ops", "int64", work[0]
    if work[1] is not None:
        yield "tensor_size", "uint64", work[1]


def _communication(execution: RankExecution, row: int, context: ExportContext, written: Written) -> (
        tuple[NodeType, Sequence[Attribute]] | None):
    found = execution.communication.rows.row(row, named=True)
    op, own = str(found["op"]), execution.rank.number
    attributes: list[Attribute] = []
    kind = COMM_NODES.get(op, NodeType.COMM_COLL)
    if kind is NodeType.COMM_COLL:
        if op not in COMM_TYPES:
            written.without_type += 1
            return None
        attributes.append(("comm_type", "int64", COMM_TYPES[op]))
    elif found["peer"] is None:
        written.without_type += 1
        return None
    else:
        sides = (own, int(found["peer"])) if op == "send" else (int(found["peer"]), own)
        attributes += [("comm_src", "int32", sides[0]), ("comm_dst", "int32", sides[1]),
                       ("comm_tag", "int32", int(found["tag"] or 0))]
    size = context.sizes.get(found["collective"], found["size_bytes"])
    if size is not None:
        attributes.append(("comm_size", "int64", int(size)))
    group = context.groups.number(found)
    if group is None:
        written.without_group += 1
    else:
        attributes.append(("pg_name", "string", str(group)))
    written.communication += 1
    return kind, attributes


def _recorded(node: Node | None) -> Iterator[Attribute]:
    if node is None:
        return
    for name in ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid"):
        yield name, "int64", getattr(node, name)
    yield "op_schema", "string", node.op_schema


def _values(recorded: RecordedValues) -> Values:
    values, shapes, types = (bytes(part).decode("utf-8", "replace") for part in (
        recorded.values, recorded.shapes, recorded.types))
    return Values(values=values, shapes=shapes, types=types)


def write_chakra(path: Path, execution: RankExecution, context: ExportContext,
                 to_common: Callable[[Integers], Integers], tags: Mapping[str, str]) -> Written:
    """Writes the file of a rank.

    Args:
        path: Ends with `.<rank>.et`, as simulators expect.
        execution: The rank.
        context: What is the same for all ranks.
        to_common: Converts an array of times from the rank's clock to the clock of all ranks.
        tags: Attributes of the whole file.

    Raises:
        OutputError: The file cannot be written.
    """
    written = Written()

    def write(temporary: Path) -> None:
        nonlocal written
        written = Written()
        with temporary.open("wb", BUFFER_BYTES) as file:
            file.write(delimited(GlobalMetadata(version=VERSION, attributes=tags).message()))
            for node in chakra_nodes(execution, context, to_common, written):
                file.write(delimited(node.message()))

    with told(path):
        write_whole(path, write)
    return written


def work_of(graph: RankGraph) -> Mapping[int, tuple[int, int | None]]:
    """Returns FLOPs and bytes by place; bytes are None if unknown.

    If an operator launched a single kernel, its work is assigned to the kernel.
    """
    timeline = graph.timeline
    if timeline is None:
        return {}
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    costs = slice_costs(timeline, nesting)
    if costs is None:
        return {}
    kernels = _only_kernels(graph)
    found = dict[int, tuple[int, int | None]]()
    for place in np.flatnonzero((graph.slice >= 0) & ~graph.on_device).tolist():
        row = int(graph.slice[place])
        flops, num_bytes = int(costs.flops[row]), int(costs.num_bytes[row])
        if flops >= 0 and (flops or num_bytes > 0):
            found[kernels.get(place, place)] = flops, num_bytes if num_bytes >= 0 else None
    return found


def _only_kernels(graph: RankGraph) -> dict[int, int]:
    """Returns call -> its kernel, for calls that launched a single kernel, including calls inside them."""
    count, last = np.zeros(len(graph.name), np.int64), np.full(len(graph.name), -1, np.int64)
    count[graph.on_device], last[graph.on_device] = 1, np.flatnonzero(graph.on_device)
    for place in range(len(graph.name) - 1, -1, -1):
        above = graph.parent[place]
        if above >= 0 and count[place]:
            count[above] += count[place]
            last[above] = last[place]
    return {place: int(last[place]) for place in np.flatnonzero((count == 1) & ~graph.on_device).tolist()}
