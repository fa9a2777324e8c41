"""fvcore's flops for a counted call: a language model, single operators by hand and beside the package."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import distprof
from distprof.peers import fvcore
from support.fvcore_sums import sums
from support.products import PRODUCTS, rand
from support.zoo import transformers_model


@pytest.mark.long
@pytest.mark.parametrize(("size", "attention", "expected"), [
    (1, "sdpa", 10_884_513_792), (1, "eager", 11_186_503_680), (2, "classifier", 22_373_010_432),
])
def test_published_totals_of_bert(size, attention, expected):
    kind = "BertForSequenceClassification" if attention == "classifier" else "BertModel"
    implementation = "sdpa" if attention == "sdpa" else "eager"
    model = transformers_model(kind, "BertConfig", attn_implementation=implementation)
    counts = distprof.count(model, torch.ones(size, 128, dtype=torch.long))
    assert sum(line.flops for line in fvcore.peer_lines(counts)) == expected
    lost = {line.reason for line in fvcore.peer_lines(counts) if line.reason}
    assert lost == ({fvcore.NO_RULE} if attention == "sdpa" else set())


@pytest.mark.parametrize(("name", "reason"), [
    ("matmul", "aten::matmul"), ("einsum", "aten::einsum"), ("same", "aten::_convolution_mode"),
    ("nearest", "aten::grid_sampler"),
])
def test_departures_are_named(name, reason):
    run = {
        "matmul": lambda: rand(3, 4) @ rand(2, 4, 5),
        "einsum": lambda: torch.einsum("ab,bc,cd->ad", rand(8, 2), rand(2, 8), rand(8, 2)),
        "same": lambda: F.conv2d(rand(1, 2, 5, 5), rand(3, 2, 3, 3), padding="same"),
        "nearest": lambda: F.grid_sample(rand(1, 2, 4, 4), rand(1, 3, 3, 2), "nearest", align_corners=False),
    }[name]
    lines = fvcore.peer_lines(distprof.count(lambda: run()))
    assert fvcore.BUGS[reason] in {line.reason for line in lines}


def total(function, *inputs: torch.Tensor) -> int:
    return sum(sums(distprof.count(function, *inputs))[0].values())


@pytest.mark.parametrize(("function", "expected"), [
    *PRODUCTS,
    (lambda: torch.einsum("pq,prs->prsq", rand(4, 3), rand(4, 2, 5)), 4 * 3 * 2 * 5 // 2),
    (lambda: nn.BatchNorm1d(6).eval()(rand(5, 6)), 2 * 30),
    (lambda: nn.BatchNorm1d(6, affine=False).eval()(rand(5, 6)), 30),
    (lambda: nn.BatchNorm2d(3)(rand(4, 3, 2, 5)), 5 * 120),
    (lambda: nn.BatchNorm3d(3, affine=False)(rand(2, 3, 2, 2, 3)), 4 * 72),
    (lambda: nn.LayerNorm(6)(rand(5, 6)), 5 * 30),
    (lambda: nn.LayerNorm(6, elementwise_affine=False)(rand(5, 6)), 4 * 30),
    (lambda: nn.GroupNorm(2, 4)(rand(3, 4, 7)), 5 * 84),
    (lambda: nn.GroupNorm(2, 4, affine=False)(rand(3, 4, 7)), 4 * 84),
    (lambda: nn.InstanceNorm2d(3, affine=True)(rand(2, 3, 4, 4)), 5 * 96),
    (lambda: nn.AdaptiveAvgPool2d((2, 1))(rand(2, 3, 4, 6)), 144),
    (lambda: F.interpolate(rand(1, 3, 4, 5), scale_factor=3, mode="nearest"), 3 * 12 * 15),
    (lambda: F.interpolate(rand(1, 3, 4, 5), size=(6, 7), mode="bilinear"), 4 * 3 * 42),
    (lambda: F.grid_sample(rand(2, 3, 4, 5), rand(2, 6, 7, 2), align_corners=False), 4 * 2 * 3 * 42),
])
def test_operators_by_hand(function, expected):
    assert total(function) == expected


class Call(nn.Module):
    """A function as a model, which is what the package wants."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def assign(x):
    y = x.clone()
    y[0], y[1], y[x > 0.5] = 3, x[1], 1
    return y


X, V, IMG = rand(5, 5), rand(3, 4, 5), rand(1, 4, 6, 6)
CALLS = {
    "iadd": (lambda x: x.clone().__iadd__(1), X), "sub": (lambda x: x - 2, X), "rsub": (lambda x: 2 - x, X),
    "div": (lambda x: x / 2, X), "rdiv": (lambda x: 2 / x, X), "floordiv": (lambda x: x // 2, X),
    "pow": (lambda x: x ** 2, X), "rpow": (lambda x: 2 ** x, X), "mod": (lambda x: x % 2, X),
    "rmod": (lambda x: 2 % x, X), "neg": (lambda x: -x, X), "abs": (abs, X), "float": (lambda x: x.double(), X),
    "and": (lambda x: (x > 0) & (x > 1), X), "or": (lambda x: (x > 0) | ~(x > 1), X), "norm": (torch.norm, X),
    "multiply": (lambda x: torch.multiply(x, x), X), "index": (lambda x: x[0, 1:, None], X), "assign": (assign, X),
    "var": (torch.var, X), "softmax": (lambda x: x.softmax(0), X), "view": (lambda x: x.view(25), X),
    "repeat": (lambda x: x.repeat(2, 2), X), "split": (lambda x: x.split(2)[0], X),
    "cat": (lambda x: torch.cat([x]), X),
    "tensordot": (lambda x: torch.tensordot(x, x, 1), X), "linalg": (lambda x: torch.linalg.matmul(x, x), X),
    "baddbmm": (lambda x: torch.baddbmm(x[None], x[None], x[None]), X), "mv": (lambda x: x.mv(x[0]), X),
    "addmm": (lambda x: torch.addmm(x, x, x), X), "multi_dot": (lambda x: torch.linalg.multi_dot([x, x, x]), X),
    "broadcast": (lambda x, y: x @ y, X, rand(2, 5, 3)), "cdist": (torch.cdist, X, X),
    "unbatched": (lambda x: F.conv2d(x, torch.ones(2, 4, 3, 3)), IMG[0]),
    "padding=same": (lambda x: F.conv2d(x, torch.ones(2, 4, 3, 3), padding="same"), IMG),
    "strides": (lambda x: F.conv2d(x, torch.ones(2, 4, 3, 3), None, [2, 1], (1, 0)), IMG),
    "convolution": (lambda x: torch.convolution(x, torch.ones(2, 4, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0],
                                                1), IMG),
    **{mode: (lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), IMG)
       for mode in ("nearest", "bilinear", "bicubic", "nearest-exact")},
    "antialias": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True), IMG),
    "linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), V),
    "pool1d": (nn.AdaptiveAvgPool1d(1), V), "pool3d": (nn.AdaptiveAvgPool3d(1), IMG),
    "max": (nn.AdaptiveMaxPool2d(1), IMG), "max_pool": (nn.MaxPool2d(2), IMG), "glu": (F.glu, IMG),
    "LSTM": (nn.LSTM(5, 4), V), "GRU": (nn.GRU(5, 4), V), "RNN": (nn.RNN(5, 4), V), "RNNCell": (nn.RNNCell(5, 4), X),
    "RNNCell.relu": (nn.RNNCell(5, 4, nonlinearity="relu"), X),
    "sdpa": (lambda x: F.scaled_dot_product_attention(x, x, x), V), "rms": (nn.RMSNorm(5), X),
    "bilinear layer": (nn.Bilinear(5, 5, 3), X, X), "embedding": (nn.Embedding(9, 3), torch.tensor([1, 2])),
    "relu6": (nn.ReLU6(), X), "silu": (nn.SiLU(inplace=True), X), "dropout": (nn.Dropout(), X),
    "normalize": (F.normalize, X), "pad": (lambda x: F.pad(x, (1, 1)), X), "mse": (lambda x: F.mse_loss(x, x), X),
    "cosine": (F.cosine_similarity, X, X), "shuffle": (nn.PixelShuffle(2), IMG), "meshgrid": (
        lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0], X),
    "outer": (lambda x: torch.einsum("i,j->ij", x[0], x[1]), X), "ellipsis": (
        lambda x: torch.einsum("...ij,jk->...ik", x, x[0, 0, :6, :6]), IMG),
    **{f"einsum of a {kind.__name__}": (lambda x, kind=kind: torch.einsum("ij,kj->ik", kind((x, x))), X)
       for kind in (tuple, list)},
    "einsum by numbers": (lambda x: torch.einsum(x, [0, 1], x, [2, 1], [0, 2]), X),
    "block_diag": (torch.block_diag, X, X), "chain": (torch.chain_matmul, X, X, X),
    "broadcast_tensors": (lambda x, y: torch.broadcast_tensors(x, y)[0], X, X[0]),
    "product of sets": (lambda x: torch.cartesian_prod(x[0], x[1]), X),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_function_as_the_package_sees_it(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing, and of the package's own imports
        real = pytest.importorskip("fvcore.nn").FlopCountAnalysis
        function, *inputs = CALLS[name]
        model = (function if isinstance(function, nn.Module) else Call(function)).eval()
        theirs = real(model, tuple(inputs)).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        expected = theirs.by_operator(), theirs.unsupported_ops()
    assert sums(distprof.count(model, *inputs)) == expected


@pytest.mark.long
@settings(max_examples=30)
@given(st.lists(st.integers(1, 3), max_size=2), st.tuples(*[st.integers(1, 4)] * 3))
def test_products_of_equal_batches_are_right(batch, sizes):
    rows, inner, columns = sizes
    counts = distprof.count(lambda: rand(*batch, rows, inner) @ rand(*batch, inner, columns))
    assert [(line.flops, line.reason) for line in fvcore.peer_lines(counts)] == [(counts.macs, "")]
