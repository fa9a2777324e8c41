"""Measures `distprof export` for an execution trace with many nodes and its timeline.

    python benchmarks/export.py [--nodes 100000 1000000] [--repeat 3]

Each step of the made-up trace has nested calls, views, in-place operations and an all_reduce of gloo.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from measuring.benchmark import DISTPROF, Found, Option, Ratio, files, run
from measuring.tables import table
from measuring.turns import COSTS, cells, cpu_s, in_turns
from measuring.yardstick import yardstick_s

FRESH = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
IN_PLACE = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
PER_STEP = 10
ATTRIBUTES = ("fw_parent", "seq_id", "scope", "fw_tid", "kernel_backend", "kernel_file", "tensor_range")


def step(number: int) -> Iterator[dict[str, Any]]:
    """Yields the calls of a step: name, id, parent, inputs, outputs and schema."""
    first, storage = 10 + number * PER_STEP, number * 8
    yield {"name": f"block.{number % 32} [Block]", "id": first, "parent": 1, "inputs": [], "outputs": [], "schema": ""}
    for place in range(1, PER_STEP - 2):
        kind, name = [(FRESH, "aten::add"), (VIEW, "aten::view"), (IN_PLACE, "aten::add_")][place % 3]
        parent = first if place % 2 else first + place - 1
        yield {"name": name, "id": first + place, "parent": parent, "inputs": [storage + place, storage],
               "outputs": [storage + place + (kind is FRESH)], "schema": kind}
    yield {"name": "c10d::allreduce_", "id": first + PER_STEP - 2, "parent": 1, "inputs": [storage + 1], "outputs": [],
           "schema": ""}
    yield {"name": "gloo:all_reduce", "id": first + PER_STEP - 1, "parent": 1, "inputs": [storage + 1], "outputs": [],
           "schema": ""}


def tensors(storages: list[int]) -> dict[str, Any]:
    """Returns values as torch's observer writes them."""
    return {"values": [[one + 1000, one + 1, 0, 4096, 4, "cpu"] for one in storages],
            "shapes": [[64, 64] for _ in storages], "types": ["Tensor(float)" for _ in storages],
            "strides": [[64, 1] for _ in storages]}


def node(call: dict[str, Any]) -> str:
    """Returns the text of a node."""
    attributes = [{"name": "rf_id", "type": "uint64", "value": call["id"]},
                  {"name": "tid", "type": "uint64", "value": 1},
                  {"name": "op_schema", "type": "string", "value": call["schema"]},
                  *({"name": name, "type": "uint64", "value": 0} for name in ATTRIBUTES)]
    return json.dumps({"id": call["id"], "name": call["name"], "ctrl_deps": call["parent"],
                       "inputs": tensors(call["inputs"]), "outputs": tensors(call["outputs"]), "attrs": attributes})


def slice_of(call: dict[str, Any], at: float) -> str:
    """Returns the text of the slice of a call."""
    on_gloo = call["name"].startswith("gloo")
    return json.dumps({
        "ph": "X", "cat": "user_annotation" if on_gloo else "cpu_op", "name": call["name"], "pid": 1,
        "tid": 2 if on_gloo else 1, "ts": at, "dur": 9.0 if call["name"].endswith("[Block]") else 0.5,
        "args": {"Record function id": call["id"], "Input Dims": [[64, 64]], "Input type": ["float"]}})


def write(folder: Path, num_nodes: int) -> None:
    """Writes an execution trace and the timeline of a rank."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 1, "ranks": [0]}
    about = {"backend": "gloo", "rank": 0, "world_size": 1, "pg_count": 1, "pg_config": [group]}
    with (folder / "et_rank0.json").open("w") as nodes, (folder / "rank0.json").open("w") as timeline:
        nodes.write('{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 1, "nodes": [\n')
        timeline.write(json.dumps({"distributedInfo": about})[:-1] + ', "traceEvents": [\n')
        _write_steps(nodes, timeline, num_nodes // PER_STEP)
        nodes.write('], "finish_ts": 2}')
        timeline.write("]}")


def _write_steps(nodes: TextIO, timeline: TextIO, num_steps: int) -> None:
    separator = ""
    for number in range(num_steps):
        for place, call in enumerate(step(number)):
            nodes.write(separator + node(call))
            timeline.write(separator + slice_of(call, 12.0 * number + place))
            separator = ",\n"


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per number of nodes."""
    rows, yardstick = [], yardstick_s()
    for number in args.nodes:
        with files(args) as folder:
            made, out = folder / "run", folder / "out"
            made.mkdir()
            write(made, number)
            costs = in_turns({"": [*DISTPROF, "export", str(made), "--out", str(out)]}, args.repeat,
                             before=partial(shutil.rmtree, out, ignore_errors=True))[""]
            sizes = [sum(file.stat().st_size for file in one.iterdir()) / 1e6 for one in (made, out)]
        rows.append([str(number), *(f"{size:.0f}" for size in sizes), *cells(costs),
                     f"{cpu_s(costs) / number * 1e6:.0f}"])
    return Found(text=[table(("nodes", "input MB", "output MB", *COSTS, "CPU us a node"), rows)],
                 ratios={"CPU / yardstick, most nodes": Ratio(value=cpu_s(costs) / yardstick)})


if __name__ == "__main__":
    run(measure, __doc__,
        nodes=Option(default=[100_000, 1_000_000], smallest=[1_000], help="of the trace (default: %(default)s)"),
        repeat=Option(default=3, smallest=1, help="runs of each (default: %(default)s)"))
