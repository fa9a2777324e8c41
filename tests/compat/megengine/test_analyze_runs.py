"""`profile_analyze` on what distprof recorded and on traces of other programs."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import pytest
import torch

from distprof.compat.megengine.analysis.profile import TYPES, dtype_of, type_of
from distprof.compat.megengine.profile_analyze import analyze
from support.jobs import called
from support.kineto_files import DLRM, needs_shared


def found(path, *flags: str) -> dict:
    return json.loads(analyze([str(path), "--json", "-t", "0", *flags]))


@pytest.mark.job
def test_operators_of_a_run(tp):
    data = found(tp)
    numbers = json.loads(called("ops", "--json", tp).stdout)["steps"]
    flags = [word for number in numbers for word in ("--step", number)]
    whole, steps = json.loads(called("ops", "--json", *flags, tp).stdout), len(numbers)
    assert data["ranks"] == whole["ranks"]
    # the same time, whoever it is said to be of; a call across the border of a step is here whole, there in its parts
    assert data["total"]["device"] * 1e9 * steps == pytest.approx(whole["totals"]["self_host_ns"], rel=1e-4)
    assert sum(row["computation"] or 0 for row in data["device"]) * steps == whole["totals"]["flops"] > 0
    products = [row for row in data["device"] if row["computation"]]
    assert {"MatrixMul"} < {row["type"] for row in products}
    assert all(row["flops"] == pytest.approx(row["computation"] / row["time"]) for row in products)


@pytest.mark.job
def test_the_commands_of_the_documentation(tp):
    by_type = analyze([str(tp), "-t", "5", "--aggregate-by", "type", "--aggregate", "sum"])
    assert "│ Elemwise" in by_type and by_type.count("├─") == 4
    assert "time of all" in analyze([str(tp), "-t", "5", "--input-dtype", "Float32"])
    text = analyze([str(tp), "-t", "5", "--order-by", "memory", "--min-time", "1e-4", "--type", "ConvolutionForward"])
    assert "no operator matches all filters" in text and "no operator has type ConvolutionForward" in text


def event(name, ts, dur, **args) -> dict:
    return {"ph": "X", "name": name, "cat": "cpu_op", "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def test_a_trace_of_another_program(tmp_path):
    conv = {"Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], []], "Input type": ["float", "c10::Half", ""]}
    events = [event("aten::convolution", 0, 10, **conv), event("aten::relu_", 20, 5), event("aten::made_up", 30, 2.5)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    rows = found(path)["device"]
    assert [(row["type"], row["time"]) for row in rows] == [
        ("ConvolutionForward", pytest.approx(1e-5)), ("Elemwise", pytest.approx(5e-6)),
        ("aten::made_up", pytest.approx(2.5e-6))]
    assert rows[0]["in_shapes"] == [[1, 3, 8, 8], [4, 3, 3, 3]] and rows[0]["computation"] is None
    assert [row["name"] for row in found(path, "--input-dtype", "Float16")["device"]] == ["aten::convolution"]
    assert [row["name"] for row in found(path, "--type", "aten::relu_")["device"]] == ["aten::relu_"]
    assert "give FLOPs for 28.6 % of the time" in analyze([str(path)]), "the convolution lacks its stride"


def test_a_trace_with_shapes_tells_computation(tmp_path):
    """What lies in an operator that counts as a whole is its time."""
    given = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    conv = {"Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []],
            "Input type": ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList",
                           "Scalar"],
            "Concrete Inputs": ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]}
    events = [event("aten::mm", 0, 10, **given), event("aten::convolution", 20, 10, **conv),
              event("aten::mkldnn_convolution", 22, 7, **conv), event("aten::made_up", 40, 2)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    rows = {row["name"]: row for row in found(path)["device"]}
    assert rows.keys() == {"aten::mm", "aten::convolution", "aten::made_up"}
    assert rows["aten::mm"]["computation"] == 48 and rows["aten::made_up"]["computation"] is None
    assert rows["aten::convolution"]["computation"] == 2 * 36 * 4 * 27
    assert rows["aten::convolution"]["time"] == pytest.approx(1e-5)
    assert rows["aten::mm"]["flops"] == pytest.approx(48 / 1e-5)
    theirs = json.loads(called("ops", "--json", path).stdout)
    assert sum(row["computation"] or 0 for row in rows.values()) == theirs["totals"]["flops"]


def test_without_shapes_computation_is_unknown(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event("aten::mm", 0, 10)]}))
    assert "computation and memory are unknown" in analyze([str(path)])
    assert found(path)["device"][0]["computation"] is None


def test_types_have_the_words_of_megengine():
    assert [type_of(name) for name in ("aten::add_", "aten::mm", "aten::_to_copy", "aten::convolution_backward")] == [
        "Elemwise", "MatrixMul", "Copy", "aten::convolution_backward"]
    operators = [name for names in TYPES.values() for name in names]
    assert len(operators) == len(set(operators))
    assert not [name for name in operators if not hasattr(torch.ops.aten, name)]
    assert [dtype_of(name) for name in ("float", "c10::BFloat16", "float16", "Scalar")] == [
        "Float32", "BFloat16", "Float16", None]


@needs_shared
@pytest.mark.long
def test_device_times_of_gpus_are_those_of_the_kernels():
    path = sorted((DLRM / "kineto").iterdir())[0]
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    spent = defaultdict(float)
    for one in json.loads(text)["traceEvents"]:
        if one.get("ph") == "X" and one.get("cat", "").lower() in ("kernel", "memcpy", "memset", "gpu_memcpy",
                                                                  "gpu_memset"):
            spent["device"] += one["dur"]
    assert found(path)["total"]["device"] == pytest.approx(spent["device"] / 1e6, rel=1e-6)
