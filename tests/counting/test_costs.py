"""Kinds, element counts, bytes and estimates of single calls, against numbers worked out by hand."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distprof import formulas
from distprof.formulas.dispatched_call import kind_without_formula
from distprof.shape_formulas.operator_call import Cost, OperatorKind
from support.counter import Counter

aten = torch.ops.aten
SIZE = st.integers(1, 5)


def costs(function, *args, **kwargs) -> list[tuple[str, Cost]]:
    with Counter() as counter:
        function(*args, **kwargs)
    return [(name.removeprefix("aten::"), cost) for name, cost in counter.costs if cost.kind != "view"]


def only(function, *args, **kwargs) -> Cost:
    found = costs(function, *args, **kwargs)
    assert len(found) == 1, found
    return found[0][1]


x = torch.randn(2, 6, 8, 8)
flat = torch.randn(4, 10)


@pytest.mark.parametrize(("function", "kind", "elements"), [
    (lambda: F.relu(x), "activation", 768),
    (lambda: F.relu_(x.clone()), "activation", 768),
    (lambda: nn.ReLU6()(x), "activation", 768),
    (lambda: F.gelu(x), "activation", 768),
    (lambda: F.silu(x), "activation", 768),
    (lambda: F.elu(x), "activation", 768),
    (lambda: F.leaky_relu(x), "activation", 768),
    (lambda: F.hardswish(x), "activation", 768),
    (lambda: torch.sigmoid(x), "activation", 768),
    (lambda: torch.tanh(x), "activation", 768),
    (lambda: F.layer_norm(x, (8,)), "norm", 768),
    (lambda: F.group_norm(x, 3), "norm", 768),
    (lambda: F.batch_norm(x, torch.zeros(6), torch.ones(6)), "norm", 768),
    (lambda: F.max_pool2d(x, 2), "pool", 768),
    (lambda: F.avg_pool2d(x, 2), "pool", 768),
    (lambda: F.adaptive_avg_pool2d(x, 2), "pool", 768),
    (lambda: F.softmax(flat, -1), "softmax", 40),
    (lambda: F.log_softmax(flat, -1), "softmax", 40),
    (lambda: F.mse_loss(flat, flat), "loss", 40),
    (lambda: F.binary_cross_entropy(torch.sigmoid(flat), torch.sigmoid(flat)), "loss", 40),
    (lambda: F.nll_loss(flat, torch.arange(4)), "loss", 40),
    (lambda: F.interpolate(x, scale_factor=2, mode="bilinear"), "upsample", 3072),
    (lambda: F.interpolate(x, size=4), "upsample", 192),
    (lambda: F.embedding(torch.tensor([1, 2, 2]), flat), "embedding", 30),
    (lambda: flat + torch.ones(3, 4, 10), "elementwise", 120),
    (lambda: flat.mul_(2), "elementwise", 40),
    (lambda: flat.abs_(), "elementwise", 40),
    (lambda: torch.where(flat > 0, flat, flat), "elementwise", 40),
    (lambda: flat.sum(), "reduction", 40),
    (lambda: flat.mean(1), "reduction", 40),
    (lambda: flat.topk(2), "reduction", 40),
    (lambda: flat.cumsum(0), "reduction", 40),
    (lambda: torch.cat([flat, flat]), "copy", 80),
    (lambda: torch.stack([flat, flat]), "copy", 80),
    (lambda: flat.t().contiguous(), "copy", 40),
    (lambda: flat.double(), "copy", 40),
    (lambda: flat.zero_(), "copy", 40),
    (lambda: flat.normal_(), "random", 40),
    (lambda: torch.bernoulli(torch.sigmoid(flat)), "random", 40),
    (lambda: torch._foreach_add([flat, flat], 1.0), "optimizer", 80),
    (lambda: torch._foreach_norm([flat, flat]), "reduction", 80),
    (lambda: aten._transform_bias_rescale_qkv(torch.randn(2, 3, 12), torch.randn(12), 2), "elementwise", 24),
])
def test_kinds_and_elements(function, kind, elements):
    found = [cost for _, cost in costs(function) if cost.kind == kind]
    assert kind in get_args(OperatorKind)
    assert found and found[-1].elements == elements
    assert found[-1].counted and not found[-1].macs and not found[-1].flops


def test_what_torch_only_tags_is_known_by_its_tag():
    for function in (torch.sinc, torch.erfinv, torch.special.i0, torch.frac):
        assert only(function, flat).kind == "elementwise"
    assert only(torch.Tensor.eq_, flat.clone(), 1).kind in ("elementwise", "copy")
    assert kind_without_formula(torch.ops.prims.sin.default) == "elementwise"


def test_what_nobody_knows_is_other_and_not_counted():
    library = torch.library.Library("distprof_test", "FRAGMENT")
    library.define("unheard_of(Tensor x) -> Tensor")
    func = torch.ops.distprof_test.unheard_of.default
    cost = formulas.cost(func, (flat,), {}, flat.clone())
    assert (cost.kind, cost.counted, cost.elements) == ("other", False, 0)
    assert (cost.read_bytes, cost.write_bytes) == (160, 160)


@pytest.mark.parametrize("function", [F.gelu, F.silu, lambda t: F.layer_norm(t, (10,)), lambda t: F.softmax(t, -1),
                                      lambda t: F.hardswish(t), lambda t: F.max_pool1d(t, 2)])
def test_backward_is_of_the_kind_of_forward(function):
    source = flat.clone().requires_grad_()
    with Counter() as counter:
        result = function(source)
        forward = {cost.kind for _, cost in counter.costs if cost.kind not in ("view", "copy")}
        counter.costs.clear()
        result.sum().backward()
    backward = [cost for name, cost in counter.costs if "backward" in name]
    assert {cost.kind for cost in backward} == forward
    assert max(cost.elements for cost in backward) in (40, 20)


def test_optimizers_count_every_parameter():
    model = nn.Linear(10, 7)
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        optimizer = kind(model.parameters(), lr=0.1, fused=True)
        model(flat).sum().backward()
        found = {name: cost for name, cost in costs(optimizer.step) if name.startswith("_fused")}
        assert [(cost.kind, cost.elements) for cost in found.values()] == [("optimizer", 77)]
    adam = next(cost for name, cost in costs(torch.optim.Adam(model.parameters(), fused=True).step)
                if name == "_fused_adam_")
    # parameters, two moments and (as the schema has it) gradients go both ways; a step count each is read
    assert (adam.read_bytes, adam.write_bytes) == (4 * 4 * 77 + 2 * 4, 4 * 4 * 77)


@given(SIZE, SIZE, SIZE)
def test_bytes_of_products_and_elementwise_work(m, k, n):
    left, right, out = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
    product = only(torch.mm, left, right)
    assert (product.read_bytes, product.write_bytes) == (4 * (m * k + k * n), 4 * m * n)
    product = only(torch.addmm, out, left, right)
    assert (product.read_bytes, product.write_bytes) == (4 * (m * k + k * n + m * n), 4 * m * n)
    product = only(torch.mm, left, right, out=out)
    assert (product.read_bytes, product.write_bytes) == (4 * (m * k + k * n), 4 * m * n)
    product = only(torch.Tensor.addmm_, out, left, right)
    assert (product.read_bytes, product.write_bytes) == (4 * (m * k + k * n + m * n), 4 * m * n)
    square = only(torch.mul, left, left)
    assert (square.read_bytes, square.write_bytes) == (4 * m * k, 4 * m * k)
    added = only(torch.Tensor.add_, left, 1)
    assert (added.read_bytes, added.write_bytes) == (4 * m * k, 4 * m * k)
    row = only(torch.add, out, torch.randn(n).expand(m, n))
    assert (row.read_bytes, row.write_bytes) == (4 * (m * n + n), 4 * m * n)
    half = only(torch.Tensor.bfloat16, left)
    assert (half.read_bytes, half.write_bytes) == (4 * m * k, 2 * m * k)


@given(SIZE, SIZE, st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_bytes_of_rows_that_are_taken(rows, width, taken):
    table = torch.randn(rows + 5, width)
    indices = torch.tensor(taken)
    moved = len(taken) * width * 4
    for function in (lambda: F.embedding(indices, table), lambda: table.index_select(0, indices),
                     lambda: table[indices]):
        cost = only(function)
        assert (cost.read_bytes, cost.write_bytes) == (moved + 8 * len(taken), moved)
    wide = indices[:, None].expand(-1, width)
    cost = only(table.gather, 0, wide)
    assert (cost.read_bytes, cost.write_bytes) == (moved + 8 * len(taken), moved)
    bag = [cost for name, cost in costs(F.embedding_bag, indices, table, torch.tensor([0]), mode="sum")
           if "bag" in name]
    assert bag[0].read_bytes == moved + 8 * len(taken) + 8
    given = torch.randn(len(taken), width)
    touched = min(moved, table.numel() * 4)
    cost = only(table.index_add_, 0, indices, given)
    assert (cost.read_bytes, cost.write_bytes) == (touched + moved + 8 * len(taken), touched)
    cost = only(lambda: table.index_put_((indices,), given))
    assert (cost.read_bytes, cost.write_bytes) == (moved + 8 * len(taken), touched)


def test_views_and_allocation_move_nothing():
    for function in (lambda: flat.t(), lambda: flat[1:], lambda: flat.view(-1), lambda: flat.expand(3, 4, 10),
                     lambda: torch.empty(100), lambda: flat.detach(), lambda: flat.unfold(0, 2, 1),
                     lambda: flat.select(0, 1), lambda: flat.diagonal(), lambda: flat.clone().unsqueeze_(0)):
        with Counter() as counter:
            function()
        name, cost = counter.costs[-1]
        assert (cost.kind, cost.read_bytes, cost.write_bytes, cost.elements) == ("view", 0, 0, 0), name


def test_overwriting_does_not_read():
    for function in (flat.zero_, flat.normal_, lambda: flat.fill_(2.0)):
        cost = only(function)
        assert (cost.read_bytes, cost.write_bytes) == (0, 160)
    cost = only(flat.copy_, torch.ones(10))
    assert (cost.read_bytes, cost.write_bytes) == (40, 160)


def test_sparse_tensors_weigh_what_they_store():
    sparse = torch.eye(10).to_sparse()
    cost = dict(costs(torch.sparse.mm, sparse, torch.ones(10, 3)))["_sparse_addmm"]
    # two indices of 8 bytes and a value for each of ten; the dense matrix; the zeros it adds to
    assert (cost.macs, cost.read_bytes, cost.write_bytes) == (30, 10 * (2 * 8 + 4) + 120 + 120, 120)


@pytest.mark.parametrize(("function", "flops"), [
    (lambda: torch.fft.fft(torch.randn(3, 8, dtype=torch.complex64)), 5 * 3 * 8 * 3),
    (lambda: torch.fft.fft2(torch.randn(4, 8, dtype=torch.complex64)), 5 * 32 * 5),
    (lambda: torch.fft.rfft(torch.randn(3, 8)), 2.5 * 3 * 8 * 3),
    (lambda: torch.fft.irfft(torch.randn(3, 5, dtype=torch.complex64)), 2.5 * 3 * 8 * 3),
    (lambda: torch.cdist(torch.randn(4, 3), torch.randn(5, 3), p=1.0), 3 * 20 * 3),
    (lambda: torch.pdist(torch.randn(4, 3)), 3 * 6 * 3),
    (lambda: torch.linalg.lu_factor(torch.randn(2, 6, 6)), 2 * 2 / 3 * 216),
    (lambda: torch.linalg.cholesky(torch.eye(6)), 72),
    (lambda: torch.linalg.qr(torch.randn(6, 6)), 8 / 3 * 216),
    (lambda: torch.linalg.inv(torch.eye(6)), 432),
    (lambda: torch.linalg.solve(torch.eye(6), torch.randn(6, 2)), 2 / 3 * 216 + 2 * 36 * 2),
    (lambda: torch.linalg.solve_triangular(torch.eye(6), torch.randn(6, 2), upper=True), 36 * 2),
    (lambda: torch.linalg.det(torch.eye(6)), 144),
    (lambda: torch.linalg.eigh(torch.eye(6)), 9 * 216),
    (lambda: torch.linalg.svd(torch.randn(6, 6)), 26 * 216),
    (lambda: torch.cholesky_solve(torch.randn(6, 2), torch.eye(6)), 2 * 36 * 2),
    (lambda: torch.linalg.lstsq(torch.randn(6, 3), torch.randn(6, 1)), 2 * 6 * 9 - 18),
])
def test_estimates_stay_out_of_the_headline(function, flops):
    with Counter() as counter:
        function()
    assert counter.total("estimate_flops") == round(flops)
    assert counter.total("flops") == 0
    assert {cost.kind for _, cost in counter.costs if cost.estimate_flops} == {"estimate"}


@pytest.mark.parametrize("function", [
    F.silu, lambda t: F.interpolate(t[None], scale_factor=2), lambda t: F.linear(t, torch.ones(3, 10)),
    lambda t: t.reshape(5, 8).t().reshape(-1), lambda t: torch.einsum("ab,cb->ac", t, t), F.hardswish,
])
def test_nothing_is_taken_apart_that_has_a_kernel(function):
    """Or else the job would compute something else while it is counted."""
    def results():
        source = flat.clone().requires_grad_()
        result = function(source)
        result.square().sum().backward()
        with torch.inference_mode():
            return result.detach(), source.grad, function(flat)

    flat.copy_(torch.linspace(-7, 7, 40).view(4, 10))
    plain = results()
    with Counter() as counter:
        counted = results()
    assert all(torch.equal(*pair) for pair in zip(plain, counted, strict=True))
    names = {name for name, _ in counter.costs}
    assert not names & {"aten::einsum", "aten::reshape"}
    if function is F.silu:
        assert "aten::silu_backward" in names
