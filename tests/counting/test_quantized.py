"""Models with few bits per weight: parameters and products are those of the model that was quantized."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.ao.nn import quantized

import distprof
from support.jobs import clean_environ
from support.operators import cost, define_libraries, meta
from support.recording import Recorded

pytestmark = [
    pytest.mark.skipif("x86" not in torch.backends.quantized.supported_engines, reason="needs x86 quantized kernels"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit", "ignore:.*quant.*:UserWarning"),
]


class Reader(nn.Module):
    """Everything that dynamic quantization knows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(100, 16), nn.LSTM(16, 12, 2, bidirectional=True)
        self.cell, self.linear, self.last = nn.GRUCell(24, 8), nn.Linear(8, 20), nn.Linear(20, 5, bias=False)

    def forward(self, x):
        return self.last(self.linear(self.cell(self.lstm(self.embedding(x))[0][-1])).relu())


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("dtype", "name", "width"), [(torch.qint8, "qint8", 1), (torch.float16, "float16", 2)])
def test_a_dynamically_quantized_model_has_the_parameters_of_the_original(dtype, name, width):
    model, tokens = Reader().eval(), torch.zeros(7, 3, dtype=torch.long)
    small = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.GRUCell, nn.Linear}, dtype=dtype)
    counts, original = distprof.count(small, tokens), distprof.count(model, tokens)
    assert counts.params.params == counts.params.stored_params == counts.params.unique_params == num_parameters(model)
    # the weights of every layer but the embedding are packed; those and the biases are not trained
    matrices = sum(parameter.numel() for path, parameter in model.named_parameters()
                   if parameter.dim() == 2 and not path.startswith("embedding"))
    assert counts.params.dtypes == {name: matrices, "float32": num_parameters(model) - matrices}
    assert counts.params.trainable_params == num_parameters(model.embedding)
    assert counts.params.param_bytes == width * matrices + 4 * (num_parameters(model) - matrices)
    found = {module.path: module for module in counts.modules}
    for path in ("lstm", "cell", "linear", "last"):
        assert found[path].params.params == num_parameters(model.get_submodule(path)), path
    assert found["cell"].own_params == num_parameters(model.cell) and found["linear"].own_params == 0
    assert counts.macs == original.macs


@pytest.mark.long
def test_a_recorded_rank_has_the_parameters_that_are_counted_alone(tmp_path):
    model, tokens = Reader().eval(), torch.zeros(7, 3, dtype=torch.long)
    small = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.GRUCell, nn.Linear})
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=0"), torch.no_grad():
        for _ in range(4):
            small(tokens)
    recorded = Recorded(tmp_path / "run")
    counts = distprof.count(small, tokens)
    assert recorded.info["params"]["params"] == num_parameters(model) == counts.params.params
    rows = recorded.modules()
    for module in counts.modules:
        row = rows[module.path]
        assert (row["params"], row["own_params"], row["param_bytes"]) == (
            module.params.params, module.own_params, module.params.param_bytes), module.path


class Scripted(nn.Module):
    """Has a method that is called like that of torch's packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x)

    @torch.jit.export
    def unpack(self, number: int):
        return number


@pytest.mark.long
def test_a_script_that_can_unpack_is_no_packed_weight(tmp_path, capsys):
    model = nn.Sequential(torch.jit.script(Scripted()))
    model[0].__dict__["raw"] = model[0]._c  # as modules keep it that wrap a script
    assert distprof.count(model, torch.ones(2, 3)).params.params == 12
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=0"), torch.no_grad():
        for _ in range(4):
            model(torch.ones(2, 3))
    assert Recorded(tmp_path / "run").info["params"]["params"] == 12
    assert "recording stopped" not in capsys.readouterr().err


def test_a_packed_layer_in_two_places_is_counted_once():
    layer = quantized.dynamic.Linear(6, 4)
    counts = distprof.count(nn.Sequential(layer, nn.ReLU(), quantized.dynamic.Linear(4, 6), layer), torch.ones(2, 6))
    assert counts.params.params == 6 * 4 + 4 + 4 * 6 + 6


@pytest.mark.parametrize(("name", "sizes", "options", "shape"), [
    ("Linear", (6, 4), {}, (2, 6)), ("Conv1d", (4, 6, 3), {"groups": 2}, (1, 4, 5)),
    ("Conv2d", (3, 4, 3), {}, (1, 3, 5, 5)), ("Conv3d", (3, 4, 2), {"bias": False}, (1, 3, 4, 4, 4)),
    ("ConvTranspose2d", (3, 4, 3), {}, (1, 3, 5, 5)),
])
def test_statically_quantized_layers_have_the_parameters_and_products_of_the_originals(name, sizes, options, shape):
    x, original = torch.ones(shape), getattr(nn, name)(*sizes, **options)
    counts = distprof.count(getattr(quantized, name)(*sizes, **options),
                            torch.quantize_per_tensor(x, 1.0, 0, torch.quint8))
    assert (counts.params.params, counts.macs) == (num_parameters(original), distprof.count(original, x).macs)
    assert counts.params.trainable_params == 0


def test_a_quantized_table_has_the_parameters_of_the_original():
    assert distprof.count(quantized.Embedding(10, 8), torch.tensor([1, 2])).params.params == 80


@pytest.mark.parametrize("rows", [(3,), (2, 5), ()])
def test_products_with_a_few_bits_by_their_shapes(rows):
    given, packed, result = meta(*rows, 64), meta(64 * 96 // 2, 1, dtype=torch.uint8), meta(*rows, 96)
    expected = given.numel() * 96
    for name in ("gemm_4bit", "gemv_4bit"):
        assert cost(f"bitsandbytes::{name}", result, A=given, B=packed, shapeB=[96, 64]).macs == expected
    weight = meta(96, 64, dtype=torch.int8)
    for name in ("int8_linear_matmul", "int8_scaled_mm"):
        assert cost(f"bitsandbytes::{name}", result, A=given, B=weight).macs == expected
    mixed = {"A": given, "CB": weight}
    assert cost("bitsandbytes::int8_mixed_scaled_mm", (result, None), outlier_cols=None, **mixed).macs == expected
    outliers = meta(5, dtype=torch.int64)
    assert cost("bitsandbytes::int8_mixed_scaled_mm", (result, None), outlier_cols=outliers, **mixed).macs \
        == expected + given.numel() // 64 * 5 * 96


class StandIn(nn.Module):
    """Looks like bitsandbytes.nn.Linear4bit: two elements in a byte, their shape in `quant_state`."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        packed = torch.zeros(width * out // 2, 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight.quant_state = SimpleNamespace(shape=torch.Size((out, width)), quant_type="nf4",
                                                  absmax=torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x):
        state = self.weight.quant_state
        return torch.ops.bitsandbytes.gemm_4bit(x, self.weight.t(), state.shape, state.absmax, 64, state.quant_type,
                                                bias=self.bias)


def test_four_bit_parameters_count_as_what_they_stand_for():
    define_libraries()
    library = torch.library.Library("bitsandbytes", "IMPL")
    library.impl("gemm_4bit", lambda x, _weight, shape, *_, **__: x.new_zeros(*x.shape[:-1], shape[0]), "CPU")
    try:
        counts = distprof.count(nn.Sequential(StandIn(64, 96), nn.ReLU(), StandIn(96, 32)), torch.ones(5, 64))
    finally:
        library._destroy()
    assert counts.macs == 5 * 96 * (64 + 32) and counts.coverage_ratio == 1
    assert counts.params.params == counts.params.stored_params == 96 * (64 + 32) + 96 + 32
    assert counts.params.dtypes == {"nf4": 96 * 96, "float32": 128} and counts.params.trainable_params == 128
    assert counts.params.param_bytes == 96 * 96 // 2 + 4 * 128
    assert [module.own_params for module in counts.modules] == [0, 96 * 64 + 96, 0, 96 * 32 + 32]


BITSANDBYTES = """
import json, torch, distprof, bitsandbytes
from torch import nn

plain = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64))
small = nn.Sequential(bitsandbytes.nn.Linear4bit(64, 128, bias=False, compute_dtype=torch.float32), nn.ReLU(),
                      bitsandbytes.nn.Linear4bit(128, 64, compute_dtype=torch.float32))
small.load_state_dict(plain.state_dict())
found = []
for model in (plain, small.to("cpu")):
    for rows in ((4, 64), (1, 64), (2, 3, 64)):
        counts = distprof.count(model, torch.randn(rows, requires_grad=True), backward=True)
        found.append([counts.params.params, counts.total("macs", "forward"), counts.coverage_ratio])
print(json.dumps(found))
"""


@pytest.mark.job
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_bitsandbytes_itself():
    done = subprocess.run([sys.executable, "-c", BITSANDBYTES], capture_output=True, text=True, check=True,
                          env=clean_environ())
    found = json.loads(done.stdout.splitlines()[-1])
    assert found[:3] == found[3:] and found[0] == [64 * 128 * 2 + 64, 4 * 64 * 128 * 2, 1.0]
