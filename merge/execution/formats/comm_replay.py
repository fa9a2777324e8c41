"""Writes communication in the form that comm_replay of PARAM (github.com/facebookresearch/param) reads and replays.

comm_replay reads torch's execution traces, but only a list of process groups and nodes named `record_param_comms`: one
where a call is issued, and one where a thread waits for an asynchronous call. Torch records these nodes for NCCL. Here
they are built from the tables of communication, so that gloo has them too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from distprof.contract.collective_ops import COLLECTIVE_OPS, POINT_TO_POINT, ranks_of
from distprof.files import told, write_whole
from distprof.merge.execution.formats.chakra import VERSION
from distprof.merge.execution.process_groups import GROUPS_NAME, ProcessGroups, Written, described, list_of_groups
from distprof.merge.match.backend_names import item_bytes

NODE = "record_param_comms"
ROOT_ID, GROUPS_ID, FIRST_ID = 1, 2, 3
ROOT = "[pytorch|profiler|execution_trace|thread]"
TYPES = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16", "int8": "char",
         "int16": "short", "int32": "int", "int64": "long", "uint8": "byte", "bool": "bool"}
"""Type of elements -> its name in comm_replay, which knows no others."""
NAMES = {"all_to_all": "all_to_allv"}
"""Op -> its name in comm_replay, if it differs from ours."""
GROWS = ("all_gather", "gather")
"""Ops whose output is the input times the number of ranks."""
NEEDED = ("collective", "rank", "op", "group", "group_ranks", "num_elements", "dtype", "peer", "tag", "split_bytes",
          "asynchronous", "enqueue_ns", "start_ns", "wait_start_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInput:
    """The communication of a job that can be replayed, on all of its ranks."""

    calls: Mapping[int, Sequence[dict[str, Any]]]
    """Rank -> its calls in order of issue: rows of the table, with the fields of their node as `attributes`."""
    lacking: Mapping[str, int]
    """What is missing -> number of calls, over all ranks, that are left out for lack of it."""


def replay_input(rows: pl.DataFrame, groups: ProcessGroups) -> ReplayInput:
    """Selects the calls that can be replayed.

    If one rank cannot issue a call, the others would wait for it forever, so it is left out on all of its ranks.

    Args:
        rows: Matched communication of all ranks.
        groups: Numbers of process groups.
    """
    calls, lacking = defaultdict[int, list[dict[str, Any]]](list), defaultdict[str, int](int)
    for mine in _together(rows):
        why = _lacks(mine, groups)
        if why is not None:
            lacking[why] += len(mine)
            continue
        for row in mine:
            calls[row["rank"]].append({**row, "attributes": _attributes(row, mine, groups)})
    for issued in calls.values():
        issued.sort(key=_issued_ns)
    return ReplayInput(calls=calls, lacking=lacking)


def _together(rows: pl.DataFrame) -> list[list[dict[str, Any]]]:
    """Groups the calls that belong together. Sends and receives whose peer only the execution trace knew were not
    matched: the N-th send from one rank to another belongs to the N-th receive there."""
    found = defaultdict[Hashable, list[dict[str, Any]]](list)
    for row in rows.select(NEEDED).iter_rows(named=True):
        found[row["collective"]].append(row)
    single = [mine[0] for mine in found.values() if len(mine) == 1 and mine[0]["op"] in POINT_TO_POINT]
    times = defaultdict[Hashable, int](int)
    for row in sorted(single, key=_issued_ns):
        sides = (row["rank"], row["peer"]) if row["op"] == "send" else (row["peer"], row["rank"])
        way = row["group"], row["group_ranks"], sides, row["tag"]
        del found[row["collective"]]
        found[*way, times[row["op"], *way]].append(row)
        times[row["op"], *way] += 1
    return list(found.values())


def _issued_ns(row: Mapping[str, Any]) -> int:
    return int(row["enqueue_ns"] if row["enqueue_ns"] is not None else row["start_ns"] or 0)


def _lacks(mine: Sequence[Mapping[str, Any]], groups: ProcessGroups) -> str | None:
    """Returns what calls that belong together lack; None if nothing."""
    op = str(mine[0]["op"])
    ranks = ranks_of(mine[0]["group_ranks"])
    if op not in COLLECTIVE_OPS:
        return "a known op"
    if groups.number(mine[0]) is None:
        return "a process group"
    if len(mine) < (2 if op in POINT_TO_POINT else len(ranks)):
        return "some of their ranks"
    if any(row["peer"] not in ranks for row in mine if op in POINT_TO_POINT or COLLECTIVE_OPS[op].rooted):
        return "a known peer or root"
    if not COLLECTIVE_OPS[op].has_data:
        return None
    if any(row["dtype"] not in TYPES or row["num_elements"] is None for row in mine):
        return "a number of elements and a type that comm_replay knows"
    if op == "all_to_all" and not all(_splits(row, len(ranks)) for row in mine):
        return "split sizes"
    return None


def _splits(row: Mapping[str, Any], num_ranks: int) -> list[int]:
    """Returns the elements that go to each rank; empty if unknown."""
    item, splits = item_bytes(row["dtype"]) or 1, row["split_bytes"] or []
    found = [one // item for one in splits]
    return found if sum(found) == row["num_elements"] and len(found) == num_ranks else []


def _attributes(row: Mapping[str, Any], mine: Sequence[Mapping[str, Any]], groups: ProcessGroups) -> (
        dict[str, int | str]):
    op, ranks = str(row["op"]), ranks_of(row["group_ranks"])
    found = _of_group(ranks, groups.number(row) or 0) | {"collective_name": NAMES.get(op, op)}
    if not COLLECTIVE_OPS[op].has_data:
        return found
    sent, received = [], []
    num_in = num_out = int(row["num_elements"])
    if op in GROWS:
        num_out *= len(ranks)
    elif op == "reduce_scatter":
        num_out //= len(ranks)
    elif op == "scatter":  # the input is that of the root
        num_in = max(int(one["num_elements"]) for one in mine)
        num_out = num_in // len(ranks)
    elif op == "all_to_all":
        own, by_rank = ranks.index(row["rank"]), {one["rank"]: one for one in mine}
        sent, received = _splits(row, len(ranks)), [_splits(by_rank[one], len(ranks))[own] for one in ranks]
        num_out = sum(received)
    return found | {"dtype": TYPES[row["dtype"]], "in_msg_nelems": num_in, "out_msg_nelems": num_out,
                    "in_split_size": json.dumps(sent), "out_split_size": json.dumps(received)}


def _of_group(ranks: Sequence[int], number: int) -> dict[str, int | str]:
    steps = {later - one for one, later in pairwise(ranks)}
    return {"pg_name": str(number), "pg_desc": described(number), "pg_size": len(ranks),
            "global_rank_start": ranks[0], "global_rank_stride": steps.pop() if len(steps) == 1 else 0}


def write_replay(path: Path, rank: int, found: ReplayInput, groups: ProcessGroups) -> Written:
    """Writes the file of a rank.

    Raises:
        OutputError: The file cannot be written.
    """
    written = Written(dependencies=None)

    def write(temporary: Path) -> None:
        with temporary.open("wb", 1 << 20) as file:
            file.write(msgspec.json.encode({"schema": VERSION, "pid": 0, "time": "", "start_ts": 0})[:-1])
            file.write(b',"nodes":[\n')
            file.write(_node(ROOT_ID, ROOT, 0, [], {}))
            file.write(b",\n" + _node(GROUPS_ID, GROUPS_NAME, ROOT_ID, [list_of_groups(groups, all_named=True)], {}))
            for number, (inputs, attributes) in enumerate(_calls(rank, found)):
                file.write(b",\n" + _node(FIRST_ID + number, NODE, ROOT_ID, inputs, attributes))
            file.write(b'\n],"finish_ts":0}\n')

    with told(path):
        write_whole(path, write)
    written.communication = len(found.calls.get(rank, ()))
    written.nodes = written.communication + sum(map(_is_waited_for, found.calls.get(rank, ())))
    return written


def _is_waited_for(row: Mapping[str, Any]) -> bool:
    return bool(row["asynchronous"]) and row["wait_start_ns"] is not None


def _calls(rank: int, found: ReplayInput) -> Iterator[tuple[list[Any], Mapping[str, int | str]]]:
    """Yields inputs and attributes of the nodes in the order in which the rank issues and waits."""
    nodes = list[tuple[int, list[Any], Mapping[str, int | str]]]()
    for number, row in enumerate(found.calls.get(rank, ())):
        own, ranks = row["attributes"], ranks_of(row["group_ranks"])
        request = [number, row["op"] in POINT_TO_POINT]
        side = ranks.index(row["peer"] if row["peer"] is not None else rank)
        nodes.append((_issued_ns(row), [request, [own["pg_name"], own["pg_desc"]], side], own))
        if _is_waited_for(row):
            wait = {name: own[name] for name in _of_group(ranks, 0)} | {"collective_name": "wait"}
            nodes.append((row["wait_start_ns"], [request, [own["pg_name"], own["pg_desc"]], side], wait))
    nodes.sort(key=lambda one: one[0])
    for _, inputs, attributes in nodes:
        yield inputs, attributes


def _node(number: int, name: str, parent: int, inputs: Sequence[Any], attributes: Mapping[str, int | str]) -> bytes:
    none = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "",
            "kernel_backend": "", "kernel_file": "", "tensor_range": ""}
    return msgspec.json.encode({
        "id": number, "name": name, "ctrl_deps": parent,
        "inputs": {"values": inputs, "shapes": [[] for _ in inputs], "types": ["" for _ in inputs],
                   "strides": [[] for _ in inputs]},
        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
        "attrs": [{"name": key, "type": "string" if isinstance(value, str) else "int64", "value": value}
                  for key, value in (none | dict(attributes)).items()]})
