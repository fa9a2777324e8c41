"""What a module takes and returns may be wrapped: dataclasses and other containers are looked into everywhere."""

from __future__ import annotations

import dataclasses
import types
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import distprof
from distprof.errors import UsageError
from distprof.model.tensors import map_tensors, tensors
from support.two_layers import FIRST, HIDDEN, OUT, ROWS, WIDTH, rows


@dataclass
class Plain:
    scores: torch.Tensor
    step: int = 3
    name: str = "name"
    nothing: torch.Tensor | None = None


@dataclass(frozen=True)
class Frozen:
    scores: torch.Tensor
    config: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slots:
    scores: torch.Tensor
    later: torch.Tensor = dataclasses.field(init=False)


@dataclass
class Nested:
    inner: Any

    @classmethod
    def of(cls, scores: torch.Tensor) -> Nested:
        return cls([{"frozen": (Frozen(scores), 1)}, "text"])


class Inherited(dict):
    """Not registered with torch."""

    @classmethod
    def of(cls, scores: torch.Tensor) -> Inherited:
        return cls(scores=scores, count=2)


WRAPPERS = {"plain": Plain, "frozen": Frozen, "slots": Slots, "nested": Nested.of, "dict": Inherited.of,
            "mapping": lambda scores: UserDict(scores=scores), "alone": lambda scores: scores}


class Wrapped(nn.Module):
    """A linear layer that returns its result in a container."""

    def __init__(self, wrap, width: int, out: int) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(width, out, bias=False), wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


class Model(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        self.first, self.last = Wrapped(wrap, WIDTH, HIDDEN), Wrapped(wrap, HIDDEN, OUT)

    def forward(self, x):
        return self.last(tensors(self.first(x))[0].relu())


@pytest.mark.parametrize("name", WRAPPERS)
def test_backward_belongs_to_the_module_whatever_it_returns_its_result_in(name):
    counts = distprof.count(Model(WRAPPERS[name]), rows(grad=True), backward=True)
    last = 2 * ROWS * HIDDEN * OUT
    assert counts.by_module() == {"": 3 * (FIRST + last), "first": 3 * FIRST, "first.layer": 3 * FIRST,
                                  "last": 3 * last, "last.layer": 3 * last}
    shapes = {module.path: module.output_shapes for module in counts.modules}
    assert shapes["first"] == ((ROWS, HIDDEN),) and shapes[""] == ((ROWS, OUT),)


@pytest.mark.parametrize("name", WRAPPERS)
def test_without_a_marked_layer_the_module_itself_is_found(name):
    """The container is all that is returned: nothing inside the module has marked the product before."""
    class Bare(Wrapped):
        def forward(self, x):
            return self.wrap(x @ self.layer.weight.t())

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bare = Bare(WRAPPERS[name], WIDTH, OUT)

        def forward(self, x):
            return tensors(self.bare(x))[0]

    counts = distprof.count(Root(), rows(grad=True), backward=True)
    flops = {module.path: module.flops for module in counts.modules}
    assert flops["bare"] == flops[""] == {"forward": 2 * ROWS * WIDTH * OUT, "backward": 4 * ROWS * WIDTH * OUT,
                                          "recompute": 0}


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, OUT, device="meta")

    def forward(self, given):
        return self.layer(tensors(given)[0])


@pytest.mark.parametrize("name", ["plain", "frozen", "slots", "nested", "alone"])
def test_a_model_on_meta_takes_what_is_wrapped(name):
    given = WRAPPERS[name](torch.ones(ROWS, WIDTH))
    counts = distprof.count(Takes(), given)
    assert counts.macs == ROWS * WIDTH * OUT and counts.modules[0].input_shapes == ((ROWS, WIDTH),)
    assert [tensor.device.type for tensor in tensors(given)] == ["cpu"]


def test_a_result_without_tensors_has_a_hint_of_its_own():
    class Text(Wrapped):
        def forward(self, x):
            return types.SimpleNamespace(scores=self.layer(x))

    with pytest.raises(UsageError, match="found SimpleNamespace") as caught:
        distprof.count(Text(None, WIDTH, OUT), rows(), backward=True)
    assert caught.value.hint == "return a tensor, or a tuple, list, dict or dataclass of tensors"


def test_containers_that_hold_each_other_are_opened_once():
    one, two = Nested(None), Nested(None)
    one.inner, two.inner = [two, torch.ones(2)], [one, torch.ones(3)]
    assert [len(tensor) for tensor in tensors(one)] == [3, 2]


def test_mapped_containers_keep_their_types_and_everything_else():
    given = (Plain(torch.ones(2), step=7), Slots(torch.ones(3)), {"a": Frozen(torch.ones(1), {"n": 1})}, Plain)
    plain, slots, inside, kind = map_tensors(lambda tensor: tensor + 1, given)
    assert (plain.step, plain.name, plain.nothing, kind) == (7, "name", None, Plain)
    assert not hasattr(slots, "later") and inside["a"].config == {"n": 1}
    assert [tensor.tolist() for tensor in tensors([plain, slots, inside])] == [[2, 2], [2, 2, 2], [2]]
    assert [tensor.tolist() for tensor in tensors(given)] == [[1, 1], [1, 1, 1], [1]]
