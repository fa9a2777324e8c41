"""FLOPs and MACs that DeepSpeed's drop-in counts, beside the real package and by the convention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distprof
from distprof.compat import deepspeed as ours
from distprof.peers.deepspeed import BUGS, NOT_REPRODUCED, peer_lines
from support.side_by_side import Calls, Case, Sensors, profile, rand, warned_of


def deepspeed_counts(deepspeed_package, function, *args) -> tuple[int, int]:
    totals, _, _ = profile(deepspeed_package, Case(lambda: Calls(function), args))
    return totals[:2]


def our_counts(function, *args, exact: bool) -> tuple[int, int]:
    lines = peer_lines(distprof.count(Calls(function), *args), exact=exact)
    return sum(line.flops for line in lines), sum(line.macs for line in lines)


PATCHED = {
    "linear": lambda: F.linear(rand(2, 3, 4), rand(5, 4), rand(5)),
    **{f"conv{n}d": lambda n=n: getattr(F, f"conv{n}d")(
        rand(2, 4, *[9] * n), rand(6, 2, *[3] * n), rand(6), 2, 1, 2, 2) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": lambda n=n: getattr(F, f"conv_transpose{n}d")(
        rand(2, 4, *[5] * n), rand(4, 3, *[3] * n), rand(6), 2, 1, 1, 2) for n in (1, 2, 3)},
    "conv2d valid": lambda: F.conv2d(rand(2, 4, 7, 7), rand(6, 4, 3, 3), padding="valid"),
    "conv2d same": lambda: F.conv2d(rand(2, 4, 7, 7), rand(6, 4, 3, 3), padding="same"),
    **{name: lambda name=name: getattr(F, name)(rand(3, 4)) for name in (
        "relu", "elu", "leaky_relu", "relu6", "silu", "gelu")},
    "prelu": lambda: F.prelu(rand(3, 4), rand(4)),
    "batch_norm": lambda: F.batch_norm(rand(3, 4), rand(4), rand(4)),
    "batch_norm affine": lambda: F.batch_norm(rand(3, 4), rand(4), rand(4), weight=rand(4), bias=rand(4)),
    "batch_norm training": lambda: F.batch_norm(rand(3, 4), rand(4), rand(4), rand(4), rand(4), True),
    "layer_norm": lambda: F.layer_norm(rand(3, 4), (4,)),
    "layer_norm affine": lambda: F.layer_norm(rand(3, 4), (4,), rand(4), rand(4)),
    "group_norm": lambda: F.group_norm(rand(3, 4, 5), 2, weight=rand(4)),
    "instance_norm": lambda: F.instance_norm(rand(3, 4, 5)),
    **{f"{kind}_pool{n}d": lambda kind=kind, n=n: getattr(F, f"{kind}_pool{n}d")(rand(2, 3, *[8] * n), 2)
       for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)},
    "max_pool2d indices": lambda: F.max_pool2d(rand(2, 3, 8, 8), 2, return_indices=True),
    "interpolate": lambda: F.interpolate(rand(2, 3, 4, 4), scale_factor=2),
    "interpolate each": lambda: F.interpolate(rand(2, 3, 4, 4), scale_factor=(2.0, 3.0), mode="bilinear"),
    "softmax": lambda: F.softmax(rand(3, 4), dim=-1),
    "embedding": lambda: F.embedding(torch.tensor([1]), rand(3, 4)),
    "attention": lambda: F.scaled_dot_product_attention(rand(2, 4, 3, 8), rand(2, 4, 5, 8), rand(2, 4, 5, 6)),
    "attention causal": lambda: F.scaled_dot_product_attention(
        rand(2, 4, 5, 8), rand(2, 4, 5, 8), rand(2, 4, 5, 8), is_causal=True),
    "matmul": lambda: torch.matmul(rand(2, 3, 4), rand(4, 5)),
    "matmul method": lambda: rand(3, 4).matmul(rand(4, 5)),
    "matmul operator": lambda: rand(3, 4) @ rand(4, 5),
    "mm": lambda: (torch.mm(rand(3, 4), rand(4, 5)), rand(3, 4).mm(rand(4, 5))),
    "bmm": lambda: (torch.bmm(rand(2, 3, 4), rand(2, 4, 5)), rand(2, 3, 4).bmm(rand(2, 4, 5))),
    "addmm": lambda: (torch.addmm(rand(5), rand(3, 4), rand(4, 5)), rand(3, 5).addmm(rand(3, 4), rand(4, 5))),
    "baddbmm": lambda: torch.baddbmm(rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)),
    "mul and add": lambda: (torch.mul(rand(2, 1, 3), rand(4, 1)), torch.add(rand(2, 3), 1), rand(3).mul(2),
                            rand(3).add(rand(2, 3)), torch.mul(rand(3), other=rand(3))),
    "operators": lambda: (rand(3) + rand(3), 2 * rand(3), rand(3) * 2, sum([rand(3), rand(3)])),
    "in place": lambda: rand(3).add_(1).mul_(2),
    "not patched": lambda: (torch.relu(rand(3)), rand(3).softmax(-1), torch.sigmoid(rand(3)), F.hardtanh(rand(3)),
                            F.dropout(rand(3)), torch.addbmm(rand(3, 5), rand(2, 3, 4), rand(2, 4, 5))),
    "attention in Python": lambda: F.multi_head_attention_forward(
        rand(3, 2, 4), rand(3, 2, 4), rand(3, 2, 4), 4, 2, rand(12, 4), rand(12), None, None, False, 0.0,
        rand(4, 4), rand(4)),
}


@pytest.mark.parametrize("name", PATCHED)
def test_every_function_it_patches(deepspeed_package, name: str) -> None:
    theirs = deepspeed_counts(deepspeed_package, PATCHED[name])
    assert our_counts(PATCHED[name], exact=True) == theirs
    assert our_counts(PATCHED[name], exact=False) == theirs


def einops_einsum() -> torch.Tensor:
    einops = pytest.importorskip("einops", reason="needs einops (distprof[test])")
    return einops.einsum(rand(2, 3, 4), rand(2, 4, 5), "b i j, b j k -> b i k")


WRONG = {  # what runs, the bug, FLOPs and MACs by the convention
    "matmul vector": (lambda: torch.matmul(rand(4, 5), rand(5)), "matmul_second_operand", (40, 20)),
    "matmul batch": (lambda: rand(3, 4) @ rand(2, 4, 5), "matmul_second_operand", (240, 120)),
    "matmul broadcast": (lambda: rand(1, 3, 4) @ rand(8, 4, 5), "matmul_second_operand", (960, 480)),
    "same": (lambda: warned_of(F.conv2d, rand(1, 3, 8, 8), rand(2, 3, 8, 8), padding="same"), "conv_same_padding",
             (2 * 64 * 2 * 3 * 64, 64 * 2 * 3 * 64)),
    "transposed without batch": (lambda: F.conv_transpose2d(rand(3, 5, 6), rand(3, 2, 2, 2), rand(2)),
                                 "conv_without_batch", (2 * 90 * 8 + 84, 90 * 8)),
    "size": (lambda: F.interpolate(rand(2, 3, 10, 10), size=(20, 20)), "interpolate_size", (2400, 0)),
    "one size": (lambda: F.interpolate(rand(2, 3, 10, 10), size=20), "interpolate_size", (2400, 0)),
    "scale": (lambda: F.interpolate(rand(1, 1, 5, 5), scale_factor=1.5), "interpolate_scale", (49, 0)),
    "einsum": (lambda: torch.einsum("bij,bjk->bik", rand(2, 3, 4), rand(2, 4, 5)), "einsum", (240, 120)),
    "einsum of three": (lambda: torch.einsum("ij,jk,kl->il", rand(2, 30), rand(30, 40), rand(40, 5)), "einsum",
                        (2 * (2400 + 400), 2400 + 400)),
    "einops": (einops_einsum, "einops_twice", (240, 120)),
}


@pytest.mark.parametrize("name", WRONG)
def test_bugs_of_the_package(deepspeed_package, name: str) -> None:
    """Ours without `exact` is the convention; with it, the package's own number."""
    function, bug, right = WRONG[name]
    theirs = deepspeed_counts(deepspeed_package, function)
    counts = distprof.count(Calls(function))
    assert our_counts(function, exact=False) == right
    assert our_counts(function, exact=True) == theirs != right
    assert [line.bug for line in peer_lines(counts) if line.flops or line.macs] == [bug]
    assert all(line.reason == BUGS[bug] for line in peer_lines(counts))


def test_upsample_counts_twice(deepspeed_package) -> None:
    def upsample(x):
        return warned_of(F.upsample, x, scale_factor=2)

    assert deepspeed_counts(deepspeed_package, upsample, rand(2, 3, 10, 10)) == (4800, 0)
    assert our_counts(upsample, rand(2, 3, 10, 10), exact=True) == (4800, 0)
    assert our_counts(upsample, rand(2, 3, 10, 10), exact=False) == (2400, 0)


RAISES = {
    "conv without batch": (lambda: F.conv2d(rand(3, 8, 8), rand(16, 3, 3, 3), padding=1), AssertionError,
                           (2 * 64 * 16 * 27, 64 * 16 * 27)),
    "attention by name": (lambda: F.scaled_dot_product_attention(
        query=rand(2, 3, 8), key=rand(2, 3, 8), value=rand(2, 3, 8)), TypeError, (2 * 288, 288)),
    "einsum of a list": (lambda: torch.einsum("ij,jk->ik", [rand(2, 3), rand(3, 4)]), AttributeError, (48, 24)),
}


@pytest.mark.parametrize("name", RAISES)
def test_where_the_package_raises(deepspeed_package, name: str) -> None:
    function, error, right = RAISES[name]
    model = Calls(function)
    profiler = deepspeed_package.FlopsProfiler(model)
    profiler.start_profile()
    with pytest.raises(error):
        model()
    profiler.end_profile()
    lines = peer_lines(distprof.count(model), exact=True)
    assert [line.raises for line in lines] == [True]
    assert (lines[0].flops, lines[0].macs) == right
    assert "raises" in lines[0].reason


class Warned(nn.Module):
    """A module that torch warns of."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return warned_of(self.layer, x)


@pytest.mark.parametrize("layer", [
    nn.RNN(3, 4), nn.RNN(3, 4, nonlinearity="relu", bias=False), nn.GRU(3, 4, 2), nn.LSTM(3, 4, bidirectional=True),
    nn.LSTM(3, 4, 2, bias=False, bidirectional=True), nn.LSTM(3, 8, 2, bidirectional=True), nn.LSTM(3, 8, proj_size=4)])
def test_recurrent_layers(deepspeed_package, layer: nn.Module) -> None:
    case = Case(lambda: Warned(layer), (rand(5, 2, 3),))
    assert profile(ours, case, compat=True)[1] == profile(deepspeed_package, case)[1]
    assert profile(ours, case)[0][1] == distprof.count(case.model(), rand(5, 2, 3)).macs


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_recurrent_cells(deepspeed_package, kind: type) -> None:
    case = Case(lambda: nn.Sequential(kind(3, 4)), (rand(5, 3),))
    assert profile(ours, case, compat=True)[1] == profile(deepspeed_package, case)[1]
    assert profile(ours, case)[0][1] == distprof.count(case.model(), rand(5, 3)).macs


def test_packed_sequences_count_their_steps() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(rand(5, 2, 3), torch.tensor([5, 2]))
    layer = nn.LSTM(3, 4)
    (line,) = peer_lines(distprof.count(layer, packed))
    assert line.raises
    assert line.macs == 7 * (16 * 3 + 16 * 4)


def test_subclass_of_a_recurrent_layer(deepspeed_package) -> None:
    class Mine(nn.GRU):
        pass

    case = Case(lambda: nn.Sequential(Mine(3, 4)), (rand(5, 2, 3),))
    assert profile(deepspeed_package, case)[0][:2] == profile(ours, case, compat=True)[0][:2] == (0, 0)
    assert profile(ours, case)[0][1] == 10 * 12 * 7


def test_function_that_a_module_holds(deepspeed_package) -> None:
    case = Case(lambda: Calls(lambda x: model_relu(x), relu=model_relu), (rand(3, 4),))
    model_relu = F.relu
    assert profile(deepspeed_package, case)[0][0] == profile(ours, case, compat=True)[0][0] == 0
    assert profile(ours, case)[0][0] == 12


def test_ignored_types_count_for_the_module_around(deepspeed_package) -> None:
    for settings in ({}, {"compat": True}):
        model = Sensors().eval()
        results = []
        for library, options in ((deepspeed_package, {}), (ours, settings)):
            profiler = library.FlopsProfiler(model, **options)
            profiler.start_profile(ignore_list=[nn.Conv1d, nn.Linear])
            model(rand(2, 3, 22))
            results.append({name: library.get_module_flops(module) for name, module in model.named_modules()})
            profiler.end_profile()
        assert results[0] == results[1]
        assert results[1]["head.0"] == 0


def test_calls_beside_the_model_do_not_count(deepspeed_package) -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    totals = []
    for library in (deepspeed_package, ours):
        profiler = library.FlopsProfiler(model)
        profiler.start_profile()
        F.relu(other(model(rand(2, 4))))
        totals.append(profiler.get_total_flops())
        profiler.end_profile()
    assert totals == [64, 64]


def test_backward_does_not_count() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    profiler = ours.FlopsProfiler(model)
    profiler.start_profile()
    torch.utils.checkpoint.checkpoint(model, rand(2, 4).requires_grad_(), use_reentrant=False).sum().backward()
    assert profiler.get_total_macs() == 32
    profiler.end_profile()


def test_every_bug_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat.md").read_text()
    for bug, sentence in {**BUGS, **NOT_REPRODUCED}.items():
        assert f"| `{bug}` | {sentence} |" in page
