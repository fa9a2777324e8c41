"""`trace(profiling=True)` and `get_profile`: the keys of MegEngine's dump, and numbers computed by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from distprof.compat.megengine import trace
from distprof.compat.megengine.profile_analyze import analyze
from distprof.errors import UsageError


def make_step(**arguments):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trace(symbolic=True, **arguments)
    def train_step(data, label):
        loss = F.cross_entropy(model(data), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step


INPUTS = torch.ones(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
CONV, FC = 2 * 2 * (4 * 6 * 6) * (3 * 3 * 3), 2 * 2 * 5 * (4 * 6 * 6)
"""FLOPs of a forward call."""


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    step = make_step(profiling=True)
    step(*INPUTS)
    path = tmp_path_factory.mktemp("step") / "profiling.json"
    with path.open("w") as file:
        json.dump(step.get_profile(), file, indent=2)
    return path


def test_keys_are_those_of_megengine(profiled):
    data = json.loads(profiled.read_text())
    assert data.keys() == {"graph_exec", "profiler"} and data["graph_exec"].keys() == {"operator", "var"}
    assert data["profiler"].keys() == {"device", "host", "opr_footprint"}
    operators, variables = data["graph_exec"]["operator"], data["graph_exec"]["var"]
    assert all(operator.keys() == {"name", "type", "id", "input", "output"} and operator["id"] == key
               for key, operator in operators.items())
    used = {key for operator in operators.values() for key in (*operator["input"], *operator["output"])}
    assert used == variables.keys()
    assert {variable["mem_plan"]["layout"]["dtype"] for variable in variables.values()} == {"Float32", "Int64"}
    assert data["profiler"]["device"].keys() == data["profiler"]["host"].keys() == operators.keys()
    for lanes in (*data["profiler"]["device"].values(), *data["profiler"]["host"].values()):
        for lane in lanes.values():
            assert lane.keys() == {"start", "kern", "end"} and 0 <= lane["start"] <= lane["kern"] <= lane["end"]
    assert all(one.keys() - {"in_layouts"} == {"computation", "memory", "in_shapes", "out_shapes", "param"}
               for one in data["profiler"]["opr_footprint"].values())


def test_numbers_of_operators(profiled):
    data = json.loads(profiled.read_text())
    operators, footprints = data["graph_exec"]["operator"], data["profiler"]["opr_footprint"]
    (conv,) = (key for key, operator in operators.items() if operator["type"] == "ConvolutionForward")
    assert operators[conv]["name"].startswith("0/aten::convolution")
    assert footprints[conv]["computation"] == CONV
    assert footprints[conv]["memory"] == 4 * (2 * 3 * 8 * 8 + 4 * 3 * 3 * 3 + 4 + 2 * 4 * 6 * 6)
    assert footprints[conv]["in_shapes"] == [[2, 3, 8, 8], [4, 3, 3, 3], [4]]
    assert footprints[conv]["out_shapes"] == [[2, 4, 6, 6]] and footprints[conv]["param"]["groups"] == 1
    products = [footprints[key] for key, operator in operators.items() if operator["type"] == "MatrixMul"]
    assert [one["computation"] for one in products] == [FC] * 3
    # the transposed weight is not contiguous
    assert products[0]["in_layouts"] == [None, [1, 144]]
    # gradients of weights, not of the data
    backward = [one["computation"] for key, one in footprints.items() if "convolution_backward" in
                operators[key]["name"]]
    assert backward == [CONV]


def test_operators_are_joined_by_their_variables(profiled):
    graph = json.loads(profiled.read_text())["graph_exec"]["operator"]
    by_name = {operator["name"].split("[")[0]: operator for operator in graph.values()}
    (made,) = by_name["0/aten::convolution"]["output"]
    assert by_name["1/aten::relu"]["input"] == [made]
    made_by = {number: operator for operator in graph.values() for number in operator["output"]}
    source = made_by[by_name["backward/aten::threshold_backward"]["input"][1]]
    while "aten::detach" in source["name"]:  # autograd keeps results so
        source = made_by[source["input"][0]]
    assert source["name"].startswith("1/aten::relu")


def test_the_commands_of_the_documentation(profiled):
    flags = "-t", "5", "--order-by", "memory", "--min-time", "0", "--type", "ConvolutionForward"
    text = analyze([str(profiled), *flags])
    assert "0/aten::convolution" in text and "{2,3,8,8}" in text and "{2,4,6,6}" in text
    found = json.loads(analyze([str(profiled), "-t", "0", "--aggregate-by", "type", "--aggregate", "sum", "--json"]))
    by_type = {row["type"]: row for row in found["device"]}
    assert by_type["MatrixMul"]["computation"] == 3 * FC and by_type["MatrixMul"]["count"] == 3


def test_the_step_computes_what_it_computed(profiled):
    plain, measured = make_step(), make_step(profiling=True)
    for _ in range(2):
        assert torch.equal(plain(*INPUTS), measured(*INPUTS))


def test_the_last_call_is_kept():
    @trace(profiling=True, opt_level=2)
    def add(x):
        return x + 1

    add(torch.ones(3))
    add(torch.ones(7))
    (footprint,) = add.get_profile()["profiler"]["opr_footprint"].values()
    assert footprint["in_shapes"] == [[7]] and add.__name__ == "add"


def test_a_method_is_profiled():
    class Adder:
        @trace(profiling=True)
        def add(self, x):
            return x + self.number

        number = 3

    adder = Adder()
    assert adder.add(torch.ones(2)).tolist() == [4, 4]
    assert len(adder.add.get_profile()["graph_exec"]["operator"]) == 1


def test_what_is_missing_is_said():
    with pytest.raises(UsageError, match="profiling=True"):
        trace(len).get_profile()
    with pytest.raises(UsageError, match="call the function first"):
        trace(profiling=True)(len).get_profile()
    with pytest.raises(UsageError, match="unknown arguments profilng"):
        trace(profilng=True)
    assert trace(len)([1, 2]) == 2


def test_an_exception_of_the_function_passes():
    @trace(profiling=True)
    def fails():
        torch.ones(2)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fails()
    torch.ones(2) + 1
    with pytest.raises(UsageError):
        fails.get_profile()
