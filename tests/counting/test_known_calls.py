"""Costs that are remembered are those that would be computed, and calls that differ in what matters are told apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distprof
from distprof.counting import known_calls
from distprof.counting.known_calls import KnownCalls
from distprof.formulas.dispatched_call import call_key

aten = torch.ops.aten
SQUARE = torch.ones(4, 4)


def key(func, *args, **kwargs):
    return call_key(func, args, kwargs, func(*args, **kwargs))


def test_calls_with_equal_shapes_and_values_are_equal():
    assert key(aten.mm.default, SQUARE, torch.ones(4, 4)) == key(aten.mm.default, torch.zeros(4, 4), torch.ones(4, 4))
    assert key(aten.sum.dim_IntList, SQUARE, [0]) == key(aten.sum.dim_IntList, torch.zeros(4, 4), [0])


@pytest.mark.parametrize(("one", "other"), [
    (lambda: key(aten.mul.Tensor, SQUARE, SQUARE), lambda: key(aten.mul.Tensor, SQUARE, torch.ones(4, 4))),
    (lambda: key(aten.mm.default, SQUARE, SQUARE.clone()), lambda: key(aten.mm.default, SQUARE, torch.ones(4, 5))),
    (lambda: key(aten.add.Tensor, SQUARE, torch.ones(4, 4)), lambda: key(
        aten.add.Tensor, SQUARE, torch.ones(1, 4).expand(4, 4))),
    (lambda: key(aten.add.Tensor, SQUARE, torch.ones(4, 4)), lambda: key(
        aten.add.Tensor, SQUARE, torch.ones(4, 4, dtype=torch.float64))),
    (lambda: key(aten.add_.Tensor, SQUARE.clone(), SQUARE), lambda: key(aten.add.Tensor, SQUARE.clone(), SQUARE)),
    (lambda: key(aten.sum.dim_IntList, SQUARE, [0]), lambda: key(aten.sum.dim_IntList, SQUARE, [1])),
    (lambda: key(aten.nonzero.default, torch.eye(3)), lambda: key(aten.nonzero.default, torch.zeros(3, 3)))])
def test_calls_that_may_cost_something_else_differ(one, other):
    assert one() != other() and one() == one()


def test_tensors_of_other_kinds_have_no_key():
    assert key(aten.neg.default, torch.eye(3).to_sparse()) is None
    assert call_key(aten.neg.default, (object(),), {}, None) is None


def test_the_type_of_a_call_is_that_of_what_goes_in_or_of_its_result_where_nothing_does():
    def dtype(func, *args, **kwargs):
        calls = KnownCalls()
        return calls.call(calls.operator(func, kwargs), args, kwargs, func(*args, **kwargs)).dtype

    assert dtype(aten.gt.Scalar, SQUARE, 0) == "float32"
    assert dtype(aten._to_copy.default, SQUARE, dtype=torch.float64) == "float32"
    assert dtype(aten.ones.default, [2], dtype=torch.float64) == "float64"


def test_calls_are_forgotten_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr(known_calls, "MOST_CALLS", 2)
    calls = KnownCalls()

    def known(size):
        x = torch.ones(size)
        return calls.call(calls.operator(aten.neg.default, {}), (x,), {}, aten.neg.default(x))

    first = known(1)
    assert first.shapes == "[[1]]" and known(1) is first and known(2) is not first
    known(3)
    again = known(1)
    assert again is not first and (again.op, again.shapes, again.cost) == (first.op, first.shapes, first.cost)


class Net(nn.Module):
    """Layers of many kinds, some twice with other sizes."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.conv, self.recurrent = nn.Conv1d(8, 6, 3, groups=2), nn.GRU(6, 5, batch_first=True)

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x)
        x = self.recurrent(F.gelu(self.conv(x.mT)).mT)[0]
        x = torch.cat([x, x * x, x[:, :1].expand(-1, 3, -1)], dim=1)
        return x.index_add(0, torch.tensor([0]), x.new_ones(1, 1, 1).expand(1, x.shape[1], 5))


@pytest.mark.long
def test_counts_are_the_same_with_and_without_it(monkeypatch):
    def counted():
        torch.manual_seed(0)
        return distprof.count(Net(), torch.arange(18).reshape(2, 9) % 11, backward=True).to_dict()

    cached = [counted(), counted()]
    monkeypatch.setattr(known_calls, "call_key", lambda *_: None)
    assert cached == [counted()] * 2
