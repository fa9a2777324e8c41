"""Parameters of models whose weights are kept in few bits: those of the model as it was, in the bytes they take."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

import distprof
from distprof.counting.count import ONE_PROCESS
from distprof.model.params import ParamCounter
from support.recording import Recorded

IN, OUT = 64, 32


def held(module: nn.Module):
    return ParamCounter([module], ONE_PROCESS).below([module])


def tensors_in(module: nn.Module) -> int:
    """Bytes of all that it holds."""
    return sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))


class Gptq(nn.Module):
    """As AutoGPTQ and GPTQModel keep a linear layer: columns of int32 with 32 / bits weights in each."""

    def __init__(self, bits: int, *, bias: bool = True, group: int = 32) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = IN, OUT, bits
        self.qweight = nn.Buffer(torch.zeros(IN * bits // 32, OUT, dtype=torch.int32))
        self.qzeros = nn.Buffer(torch.zeros(IN // group, OUT * bits // 32, dtype=torch.int32))
        self.scales = nn.Buffer(torch.ones(IN // group, OUT, dtype=torch.float16))
        self.g_idx = nn.Buffer(torch.arange(IN, dtype=torch.int32) // group)
        self.bias = nn.Buffer(torch.zeros(OUT, dtype=torch.float16)) if bias else None

    def forward(self, x):
        shifts = torch.arange(0, 32, self.bits)
        weight = (self.qweight[:, None] >> shifts[None, :, None]) & (2**self.bits - 1)
        out = x @ (weight.reshape(IN, OUT).to(x.dtype))
        return out if self.bias is None else out + self.bias


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_columns_are_the_linear_layer_that_they_were(bits, bias):
    plain, layer = nn.Linear(IN, OUT, bias=bias), Gptq(bits, bias=bias)
    found = held(layer)
    assert found.params == held(plain).params == sum(one.numel() for one in plain.parameters())
    assert found.param_bytes + found.buffer_bytes == tensors_in(layer) and not found.trainable_params
    assert found.param_bytes == IN * OUT * bits // 8 + 2 * OUT * bias


def test_a_count_and_a_run_have_them_once(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    layer = Gptq(4)
    network, number = nn.Sequential(layer, nn.ReLU(), nn.Linear(OUT, 4), nn.Sequential(layer)[:0]), IN * OUT + OUT
    counts = distprof.count(network, torch.randn(2, IN))
    assert counts.params.params == number + 4 * OUT + 4 and counts.forward_flops == 2 * 2 * (IN * OUT + OUT * 4)
    assert {module.path: module.own_params for module in counts.modules}["0"] == number
    with distprof.record(tmp_path, steps="wait=0,count=1,time=0,trace=0") as rec:
        network(torch.randn(2, IN))
        rec.step()
    rows = Recorded(tmp_path).table("parameters").filter(module_path="0")
    assert dict(zip(rows["name"], rows["params"], strict=True)) == {"qweight": IN * OUT, "bias": OUT}


class EightBitFloats(nn.Linear):
    """As transformers' FP8Linear: scales are parameters beside the weight."""

    def __init__(self, block: int) -> None:
        super().__init__(IN, OUT)
        self.weight = nn.Parameter(torch.zeros(OUT, IN).to(torch.float8_e4m3fn), requires_grad=False)
        self.weight_scale_inv = nn.Parameter(torch.ones(OUT // block, IN // block))
        self.activation_scale = nn.Parameter(torch.tensor(1.0))


@given(st.sampled_from([1, 4, 32]))
def test_scales_are_no_parameters_of_the_model(block):
    layer = EightBitFloats(block)
    found = held(layer)
    assert found.params == held(nn.Linear(IN, OUT)).params
    assert found.param_bytes == tensors_in(layer), "but they take memory"
    assert found.dtypes == {"float8_e4m3fn": IN * OUT, "float32": OUT}


class Ordinary(nn.Module):
    """Small integers that are no weights, and parameters that are called scale."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features, self.out_features = IN, OUT
        self.weight, self.scale = nn.Parameter(torch.zeros(OUT, IN)), nn.Parameter(torch.ones(OUT))
        self.mask = nn.Buffer(torch.ones(OUT, IN, dtype=torch.uint8))
        self.table = nn.Parameter(torch.zeros(3, 5, dtype=torch.int8), requires_grad=False)


def test_other_modules_hold_what_they_hold():
    found = held(Ordinary())
    assert (found.params, found.buffers) == (OUT * IN + OUT + 15, OUT * IN)


def test_packed_four_bit_numbers_are_two_each():
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no packed four-bit numbers")
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.empty(OUT, IN // 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
                                requires_grad=False)
    found = held(layer)
    assert (found.params, found.param_bytes) == (OUT * IN, OUT * IN // 2)


class Wrapping(torch.Tensor):
    """As torchao's and quanto's tensors: says that it is float32, and holds int8 and a scale a row."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values, scale) -> None:
        self.values_of, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values_of", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, _context, _size, _stride):
        return cls(inner["values_of"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        plain = [one.values_of * one.scale if isinstance(one, cls) else one for one in args]
        out = args[0].detach_() if "detach_" in str(func) else func(*plain, **(kwargs or {}))
        return return_and_correct_aliasing(func, args, kwargs or {}, cls(
            args[0].values_of, args[0].scale) if "detach" in str(func) else out)


@pytest.mark.parametrize(("weight", "num_bytes"), [
    (lambda: Wrapping(torch.zeros(OUT, IN, dtype=torch.int8), torch.ones(OUT, 1)), OUT * IN + 4 * OUT),
    (lambda: torch.eye(OUT).to_sparse_csr(), 4 * OUT + 8 * OUT + 8 * (OUT + 1)),
    (lambda: torch.eye(OUT).to_sparse_coo(), 4 * OUT + 2 * 8 * OUT)])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_bytes_of_a_tensor_made_of_others_are_theirs(weight, num_bytes):
    layer = nn.Module()
    layer.weight = nn.Parameter(weight(), requires_grad=False)
    found = held(layer)
    assert (found.params, found.param_bytes) == (layer.weight.numel(), num_bytes)


# --- the libraries themselves -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_transformers_experts_in_mxfp4():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    experts, inner, hidden = 4, 16, 32
    layer = mxfp4.Mxfp4GptOssExperts(SimpleNamespace(num_local_experts=experts, intermediate_size=inner,
                                                     hidden_size=hidden))
    found, biases = held(layer), experts * (2 * inner + hidden)
    assert found.params == experts * 3 * inner * hidden + biases
    assert found.param_bytes == tensors_in(layer)


@pytest.mark.long
def test_transformers_bitnet():
    bitnet = pytest.importorskip("transformers.integrations.bitnet")
    layer = bitnet.BitLinear(IN, OUT, bias=True, dtype=torch.float32)
    found = held(layer)
    assert found.params == held(nn.Linear(IN, OUT)).params
    assert found.param_bytes + found.buffer_bytes == tensors_in(layer)


def test_torchao():
    quantization = pytest.importorskip("torchao.quantization")
    layer = nn.Linear(IN, OUT, bias=False)
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    found = held(layer)
    assert found.params == IN * OUT and IN * OUT < found.param_bytes < 2 * IN * OUT
    assert len(pickle.dumps(layer.state_dict())) >= found.param_bytes
