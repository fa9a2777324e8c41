"""Builds execution traces for tests, and reads Chakra files independently of distprof."""

from __future__ import annotations

import json
import struct
from typing import Any

FRESH = "aten::add.Tensor(Tensor self, Tensor other) -> Tensor"
"""Schema of an operator that returns a new tensor."""
ROOT = "[pytorch|profiler|execution_trace|thread]"
ATTRIBUTES = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")


def tensor(storage, *, size=4, device="cpu"):
    """Returns a float tensor in a storage."""
    return [storage + 1000, storage, 0, size, 4, device]


def values(*given):
    """Returns inputs or outputs of a node."""
    return {"values": list(given), "shapes": [[] for _ in given], "types": ["Tensor(float)" for _ in given]}


def call(number, name, *, parent=1, rf_id=None, inputs=(), outputs=(), schema="", tid=1, without=(), **more):
    """Returns a node in the newer layout."""
    given = {"rf_id": number if rf_id is None else rf_id, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": tid,
             "fw_tid": 0, "op_schema": schema}
    return {"id": number, "name": name, "ctrl_deps": parent, "inputs": values(*inputs), "outputs": values(*outputs),
            "attrs": [{"name": key, "type": "uint64", "value": given[key]} for key in ATTRIBUTES
                      if key not in without], **more}


def old_call(number, name, *, parent=1, inputs=(), outputs=(), schema=""):
    """Returns a node as written by torch up to 2.1."""
    return {"id": number, "name": name, "parent": parent, "rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0,
            "tid": 1, "fw_tid": 0, "op_schema": schema, "inputs": list(inputs), "input_shapes": [], "input_types": [],
            "outputs": list(outputs), "output_shapes": [], "output_types": []}


def file_of(*nodes, schema="1.1.1-chakra.0.0.4", **more):
    """Returns the text of a file."""
    root = call(1, ROOT, parent=0, rf_id=0)
    return json.dumps({"schema": schema, "pid": 1, "time": "", "start_ts": 1, "nodes": [root, *nodes],
                       "finish_ts": 2, **more})


def slices(*named, step_us=10):
    """Returns consecutive slices of a timeline from (name, id of the call); dictionaries are kept as they are."""
    found = []
    for place, one in enumerate(named):
        found.append(one if isinstance(one, dict) else {
            "ph": "X", "cat": "cpu_op", "name": one[0], "pid": 1, "tid": 1, "ts": 100 + step_us * place,
            "dur": step_us - 2, "args": {"Record function id": one[1], "External id": place + 1}})
    return found


def pair(folder, nodes, events, *, rank=0, world_size=1, **more):
    """Writes the execution trace and the timeline of a rank."""
    folder.mkdir(exist_ok=True)
    (folder / f"et_rank{rank}.json").write_text(nodes if isinstance(nodes, str) else file_of(*nodes))
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world_size, "ranks": list(range(world_size))}
    (folder / f"rank{rank}.json").write_text(json.dumps({
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world_size, "pg_count": 1,
                            "pg_config": [group]}, "traceEvents": events, **more}))
    return folder


def gloo_job(folder):
    """Writes two ranks with an all_reduce on a gloo thread, which starts 2 us apart, and a send."""
    for rank in (0, 1):
        other, name = 1 - rank, "recv_" if rank else "send"
        nodes = [call(2, "make", outputs=[tensor(1)], schema=FRESH),
                 call(3, "c10d::allreduce_", inputs=[[tensor(1, size=25)]]),
                 call(4, "gloo:all_reduce", inputs=[tensor(1, size=25)]),
                 call(5, f"c10d::{name}", inputs=[[tensor(2)], "<Object>", other, 9]),
                 call(6, f"gloo:{name.rstrip('_')}", inputs=[tensor(2)], parent=5),
                 call(7, "use", inputs=[tensor(1)], schema=FRESH)]
        timeline = slices(("make", 2), ("c10d::allreduce_", 3), {}, (f"c10d::{name}", 5), {}, ("use", 7))
        work = {"ph": "X", "cat": "user_annotation", "pid": 1}
        timeline[2] = work | {"name": "gloo:all_reduce", "tid": 7, "ts": 115 + 2 * rank, "dur": 9, "args": {
            "Record function id": 4, "Input Dims": [[25]], "Input type": ["float"]}}
        timeline[4] = work | {"name": f"gloo:{name.rstrip('_')}", "tid": 1, "ts": 131, "dur": 4, "args": {
            "Record function id": 6, "Input Dims": [[4]], "Input type": ["float"]}}
        pair(folder, nodes, timeline, rank=rank, world_size=2)
    return folder


def read_et(path) -> tuple[dict[int, Any], list[dict[str, Any]]]:
    """Returns metadata and nodes of a Chakra file; fields by number, attributes by name.

    Implemented only from the encoding of protocol buffers and the schema.
    """
    text, at = path.read_bytes(), 0
    messages = []
    while at < len(text):
        size, at = _varint(text, at)
        assert at + size <= len(text), "cut"
        messages.append(text[at:at + size])
        at += size
    nodes = []
    for message in messages[1:]:
        fields = _fields(message)
        attributes = {}
        for one in fields.get(10, []):
            parts = _fields(one)
            (_, (value,)), = [item for item in parts.items() if item[0] != 1]
            attributes[parts[1][0].decode()] = value.decode() if isinstance(value, bytes) else value
        nodes.append({
            "id": fields[1][0], "name": fields[2][0].decode(), "type": fields[3][0],
            "control": _packed(fields.get(4, [])), "data": _packed(fields.get(5, [])),
            "start": fields.get(6, [0])[0], "duration": fields.get(7, [0])[0], "attributes": attributes,
            "inputs": [part.decode() for (part,) in _fields(fields[8][0]).values()]})
    return _fields(messages[0]), nodes


def _packed(parts: list[bytes]) -> list[int]:
    found = []
    for part in parts:
        at = 0
        while at < len(part):
            value, at = _varint(part, at)
            found.append(value)
    return found


def _fields(message: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            value, at = message[at:at + size], at + size
        else:
            value, at = struct.unpack_from("<q", message, at)[0], at + 8
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(text: bytes, at: int) -> tuple[int, int]:
    if text[at] < 0x80:
        return text[at], at + 1
    value = shift = 0
    while True:
        value |= (text[at] & 0x7F) << shift
        at += 1
        if text[at - 1] < 0x80:
            return value, at
        shift += 7
