"""A profile as MegEngine's `get_profile()` returns it, written by hand."""

from __future__ import annotations

import copy
import json

import pytest


def variable(dtype: str) -> dict:
    return {"mem_plan": {"layout": {"dtype": dtype}}}


DUMP = {
    "graph_exec": {
        "operator": {
            "10": {"name": "conv1[0]", "type": "ConvolutionForward", "id": "10", "input": ["0", "1"], "output": ["2"]},
            "11": {"name": "relu[1]", "type": "Elemwise", "id": "11", "input": ["2"], "output": ["3"]},
            "12": {"name": "conv2[2]", "type": "ConvolutionForward", "id": "12", "input": ["3", "4"], "output": ["5"]},
            "13": {"name": "to_gpu[3]", "type": "Copy", "id": "13", "input": ["6"], "output": ["7"]},
            "14": {"name": "fc[4]", "type": "MatrixMul", "id": "14", "input": ["5", "8"], "output": ["9"]},
            "15": {"name": "never timed", "type": "Reshape", "id": "15", "input": ["5"], "output": ["10"]}},
        "var": {**{str(number): variable("Float32") for number in range(11)},
                "6": variable("Uint8"), "8": variable("Float16")}},
    "profiler": {
        "device": {
            # two devices: the longer one counts, 3 ms and not 5 ms
            "10": {"gpu0": {"start": 1.0, "kern": 1.0005, "end": 1.003}, "gpu1": {"start": 1.0, "kern": 1.001,
                                                                              "end": 1.002}},
            "11": {"gpu0": {"start": 1.003, "kern": 1.00301, "end": 1.00305}},
            "12": {"gpu0": {"start": 1.004, "kern": 1.0041, "end": 1.005}},
            "13": {"gpu0": {"start": 1.006, "kern": 1.0062, "end": 1.008}},
            "14": {"gpu0": {"start": 1.01, "kern": 1.0102, "end": 1.0145}}},
        "host": {
            "10": {"worker": {"start": 0.5, "kern": 0.5001, "end": 0.5002}},
            "11": {"worker": {"start": 0.51, "kern": 0.51, "end": 0.5101}},
            "12": {"worker": {"start": 0.52, "kern": 0.52, "end": 0.5207}}},
        "opr_footprint": {
            "10": {"computation": 6000000, "memory": 3145728, "in_shapes": [[1, 3, 8, 8], [4, 3, 3, 3]],
                   "out_shapes": [[1, 4, 6, 6]], "in_layouts": [[192, 1, 24, 3], None], "param": {"stride_h": 1}},
            "11": {"computation": 0, "memory": 2048, "in_shapes": [[1, 4, 6, 6]], "out_shapes": [[1, 4, 6, 6]]},
            "12": {"computation": 9000000, "memory": 1024, "in_shapes": [[1, 4, 6, 6], [4, 4, 3, 3]],
                   "out_shapes": [[1, 4, 4, 4]]},
            "13": {"computation": 0, "memory": 600, "in_shapes": [[600]], "out_shapes": [[600]]},
            "14": {"computation": 1500000000, "memory": 4194304, "in_shapes": [[1, 64], [64, 10]],
                   "out_shapes": [[1, 10]]},
            "15": {"computation": 0, "memory": 0, "in_shapes": [[1, 64]], "out_shapes": [[64]]}}}}
"""Device times in ms: conv1 3, relu 0.05, conv2 1, to_gpu 2, fc 4.5; together 10.55. Host: 0.2, 0.1, 0.7."""


@pytest.fixture
def content() -> dict:
    return copy.deepcopy(DUMP)


@pytest.fixture
def dump(tmp_path, content):
    path = tmp_path / "profiling.json"
    path.write_text(json.dumps(content))
    return path
