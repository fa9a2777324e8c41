"""Reads a trace according to the rules of comm_replay; written from its input format, not from its code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DTYPES = {"float", "float32", "float16", "float64", "double", "int32", "int", "long", "bfloat16", "bool", "half",
          "byte", "uint8", "int8", "short", "char"}
OPS = {"all_gather", "all_reduce", "all_to_allv", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "recv",
       "scatter", "send", "wait"}
NODE_KEYS = ("id", "name", "ctrl_deps", "inputs", "outputs", "attrs")
SIDES = ("values", "types", "shapes", "strides")
ATTRIBUTES = ("fw_parent", "seq_id", "fw_tid", "op_schema", "rf_id", "scope", "tid", "kernel_backend", "kernel_file",
              "tensor_range")


def calls_of(path: Path, rank: int) -> list[dict[str, Any]]:
    """Returns the calls of a rank; checks that everything that comm_replay reads is where it has to be."""
    file = json.loads(path.read_text())
    assert file["schema"] == "1.1.1-chakra.0.0.4" and isinstance(file["pid"], int)
    groups: dict[int, list[int]] = {}
    found = []
    for node in file["nodes"]:
        assert all(key in node for key in NODE_KEYS) and all(
            len({len(node[side][key]) for key in SIDES}) == 1 for side in ("inputs", "outputs"))
        given = {one["name"]: one["value"] for one in node["attrs"]}
        assert all(name in given for name in ATTRIBUTES)
        if "process_group:init" in node["name"]:
            assert not groups, "only the first list is read"
            for group in json.loads(node["inputs"]["values"][0]):
                assert group["pg_name"].isdecimal() and len(group["ranks"]) == group["group_size"]
                assert {"pg_desc", "group_count"} <= set(group)
                groups[int(group["pg_name"])] = group["ranks"]
        elif node["name"] == "record_param_comms":
            found.append(_call(node["inputs"]["values"], given, groups, rank))
    waits = [(one["group"], *one["request"]) for one in found if one["op"] == "wait"]
    issued = [(one["group"], *one["request"]) for one in found if one["op"] != "wait"]
    assert len(set(issued)) == len(issued) and len(set(waits)) == len(waits) and set(waits) <= set(issued)
    return found


def _call(inputs: list[Any], given: dict[str, Any], groups: dict[int, list[int]], rank: int) -> dict[str, Any]:
    (number, is_pair), _, side = inputs[:3]
    assert type(number) is int and type(is_pair) is bool
    ranks, op = groups[int(given["pg_name"])], given["collective_name"]
    assert op in OPS and given["pg_size"] == len(ranks) and given["global_rank_start"] == ranks[0] and rank in ranks
    found = {"op": op, "group": int(given["pg_name"]), "ranks": tuple(ranks), "request": (number, is_pair)}
    if op in ("wait", "barrier"):
        return found
    assert given["dtype"] in DTYPES and is_pair == (op in ("send", "recv"))
    found |= {"dtype": given["dtype"], "in": given["in_msg_nelems"], "out": given["out_msg_nelems"],
              "in_split": json.loads(given["in_split_size"]), "out_split": json.loads(given["out_split_size"])}
    if op == "all_to_allv":
        assert len(found["in_split"]) == len(found["out_split"]) == len(ranks)
        assert (sum(found["in_split"]), sum(found["out_split"])) == (found["in"], found["out"])
    if op in ("send", "recv", "broadcast", "reduce", "gather", "scatter"):
        found["side"] = ranks[side]
    return found


def assert_that_they_meet(by_rank: dict[int, list[dict[str, Any]]]) -> None:
    """Checks that ranks of a group issue the same calls in the same order with matching sizes, and that every send has
    its receive."""
    groups = {one["ranks"] for calls in by_rank.values() for one in calls}
    for ranks in groups:
        each = [[one for one in by_rank[rank] if one["ranks"] == ranks and one["op"] not in ("wait", "send", "recv")]
                for rank in ranks]
        for together in zip(*each, strict=True):
            assert len({(one["op"], one.get("dtype"), one.get("side")) for one in together}) == 1
            if together[0]["op"] == "all_to_allv":
                for place, one in enumerate(together):
                    assert one["out_split"] == [other["in_split"][place] for other in together]
            elif together[0]["op"] != "barrier":
                assert len({(one["in"], one["out"]) for one in together}) == 1
    pairs = {op: sorted((rank, one["side"], one["in"]) if op == "send" else (one["side"], rank, one["in"])
                        for rank, calls in by_rank.items() for one in calls if one["op"] == op)
             for op in ("send", "recv")}
    assert pairs["send"] == pairs["recv"]
