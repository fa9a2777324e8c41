"""What a model holds is after some calls as it was, and a profiled call changes it once."""

from __future__ import annotations

import array
import itertools
import random
from collections import Counter, OrderedDict, deque
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from distprof.compat.deepspeed import FlopsProfiler
from distprof.compat.fvcore import FlopCountAnalysis
from distprof.model.held_state import CannotRestoreError, attributes_kept


class Slotted:
    """Without a __dict__."""

    __slots__ = ("count", "later")

    def __init__(self) -> None:
        self.count = 0


class Helper:
    """A plain object that leads back to the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.count, self.noted = model, 0, [[0]]

    def note(self) -> None:
        self.count += 1
        self.noted[0][0] += 1


def counter() -> tuple:
    count, held = 0, torch.zeros(2)

    def up() -> int:
        nonlocal count
        count += 1
        return count

    return up, held


class Holding(nn.Module):
    """Counts its calls in every kind of thing that an attribute may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.tensor, self.tensors = torch.zeros(2), {"mean": torch.zeros(1)}
        self.deep = [[0], ({"calls": [torch.zeros(1)]},)]
        self.leaf = torch.zeros(2, requires_grad=True)
        self.expanded, self.sparse = torch.zeros(1).expand(3), torch.eye(2).to_sparse()
        self.grown, self.moved = torch.zeros(2), torch.zeros(2)
        with torch.inference_mode():
            self.inferred = torch.zeros(2)
        self.generator, self.draws = torch.Generator().manual_seed(1), random.Random(2)
        self.rng, self.old_rng, self.array = np.random.default_rng(3), np.random.RandomState(4), np.zeros(2)
        self.last, self.lru, self.counts = deque([0, 1], maxlen=2), OrderedDict(a=1, b=2), Counter()
        self.bytes, self.numbers, self.nested = bytearray(b"a"), array.array("q", [1]), {"kinds": {0}}
        self.slotted, self.helper, (self.up, self.held) = Slotted(), Helper(self), counter()
        self.note = partial(self.helper.note)
        self.append = [].append

    def forward(self, x):
        self.tensor += 1
        self.tensors["mean"].mul_(0.9).add_(0.1)
        self.deep[0][0] += 1
        self.deep[1][0]["calls"][0].add_(1)
        with torch.no_grad():
            self.leaf += 1
        self.expanded._base.add_(1)
        self.sparse.mul_(2)
        self.grown.resize_(self.grown.numel() + 1)[-1] = 5
        self.moved.data = self.moved.data + 1
        with torch.inference_mode():
            self.inferred.add_(1)
        self.drawn = [torch.rand(1, generator=self.generator).item(), self.draws.random(), self.rng.random(),
                      self.old_rng.rand()]
        self.array += 1
        self.last.append(self.last[-1] + 1)
        self.lru.move_to_end(next(iter(self.lru)))
        self.counts["calls"] += 1
        self.bytes += b"b"
        self.numbers.append(2)
        self.nested["kinds"].add(len(self.nested["kinds"]))
        self.slotted.count += 1
        self.slotted.later = self.slotted.count
        self.note()
        self.called = self.up()
        self.append(1)
        return self.layer(x)

    def shown(self) -> dict[str, str]:
        """Each as text."""
        plain = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        states = {"generator": self.generator.get_state().tolist(), "draws": self.draws.getstate(),
                  "rng": self.rng.bit_generator.state, "old_rng": self.old_rng.get_state(legacy=True)}
        objects = {"append": self.append.__self__, "note": None,
                   "slotted": (self.slotted.count, hasattr(self.slotted, "later")),
                   "helper": (self.helper.count, self.helper.noted), "up": self.up.__closure__[0].cell_contents}
        return {name: str(value) for name, value in (plain | states | objects).items()}


@pytest.fixture
def model() -> Holding:
    torch.manual_seed(0)
    return Holding()


def test_all_is_as_before(model):
    before, held = model.shown(), dict(vars(model))
    for calls in (1, 3):
        with attributes_kept(model):
            for _ in range(calls):
                model(torch.ones(1, 4))
            changed = model.shown()
        same = {name for name in before if changed[name] == before[name]}
        assert same == {"training", "note", "held"}
        assert model.shown() == before
        assert all(vars(model)[name] is value for name, value in held.items())


def test_a_profiled_call_changes_it_once(model):
    torch.manual_seed(0)
    other = Holding()
    model(torch.ones(1, 4))
    profiler = FlopsProfiler(other)
    profiler.start_profile()
    other(torch.ones(1, 4))
    profiler.stop_profile()
    assert profiler.get_total_macs() == 16
    profiler.end_profile()
    assert other.shown() == model.shown()


def test_an_analysis_changes_nothing(model):
    before = model.shown()
    assert FlopCountAnalysis(model, torch.ones(1, 4)).total() == 16
    assert model.shown() == before


class Iterating(nn.Module):
    """Holds what can only go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.numbers, self.helper = nn.Linear(4, 4), itertools.count(), Helper(self)

    def forward(self, x):
        self.last = next(self.numbers)
        self.helper.note()
        return self.layer(x)


def test_what_cannot_go_back_is_called_once():
    model = Iterating()
    with pytest.raises(CannotRestoreError, match="holds a count"), attributes_kept(model):
        raise AssertionError("inside")
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(torch.ones(1, 4))
    profiler.stop_profile()
    assert (profiler.get_total_macs(), model.last, model.helper.count) == (16, 0, 1)
    profiler.end_profile()
    FlopCountAnalysis(model, torch.ones(1, 4)).total()
    assert (model.helper.count, model.helper.noted) == (1, [[1]])


KINDS = {
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "coo": lambda: torch.eye(4).to_sparse(), "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(), "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "overlapping": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "eight bits": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "four bits": lambda: torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "no shape": lambda: torch.ones(()),
}
CHANGES = {
    "quantized": lambda held: held.copy_(torch.zeros(3)), "nested": lambda held: held.mul_(2),
    "jagged": lambda held: held.values().mul_(2), "overlapping": lambda held: held[0].mul_(2),
    "eight bits": lambda held: held.fill_(0), "four bits": lambda held: held.view(torch.uint8).fill_(7),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_any_kind_are_put_back(kind):
    model = nn.Linear(2, 2)
    model.held = KINDS[kind]()
    before, held = content(model.held), model.held
    with attributes_kept(model):
        CHANGES.get(kind, lambda held: held.mul_(2))(model.held)
        assert content(model.held) != before
        model.held = None
    assert model.held is held and content(held) == before


def content(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return str(tensor.unbind())
    return str(tensor.view(torch.uint8) if tensor.dtype is torch.float4_e2m1fn_x2 else tensor)


def test_memory_that_was_given_back_is_there_again():
    model = nn.Linear(2, 2)
    model.held = torch.arange(5.0)
    with attributes_kept(model):
        model.held.untyped_storage().resize_(0)
    assert model.held.tolist() == [0, 1, 2, 3, 4]
