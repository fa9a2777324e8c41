"""Latency of modules, judged by a clock that only known work moves: self and inclusive, forward, backward, repeated.

Measuring leaves alone the graph with its gradients, memory, and torch after a failure.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from distprof.model.modules import ModuleMap
from distprof.model.scopes import ModuleScopes
from distprof.timing.latency import Latency
from distprof.timing.repetition import measure_latency
from distprof.timing.time_pass import TimePass
from support.models import Checkpointed
from support.ticks import Attention, Cost, Tied, Worker, check_sums, measured, selves, totals


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_chain(clock, needs_grad):
    model = nn.Sequential(Worker(clock, 10, 20), nn.Sequential(Worker(clock, 30, 50), nn.Tanh()), Worker(clock, 7, 11))
    found = measured(model, steps=3, needs_grad=needs_grad)
    assert selves(found, "fwd", "bwd", "recompute") == {
        "": (0, 0, None), "0": (10, 20, None), "1": (0, 0, None), "1.0": (30, 50, None), "1.1": (0, 0, None),
        "2": (7, 11, None)}
    assert (found["1"].fwd_ns, found["1"].bwd_ns, found[""].fwd_ns, found[""].bwd_ns) == (30, 50, 47, 81)
    check_sums(found)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_siblings_that_share_an_input_are_told_apart(clock, needs_grad):
    model = Attention(Worker(clock, 10, 20), Worker(clock, 1, 2), Worker(clock, 100, 200), Worker(clock, 5, 7))
    found = measured(model, needs_grad=needs_grad, pick=lambda out: out["out"])
    assert selves(found, "fwd", "bwd") == {"": (10, 14), "q": (10, 20), "k": (1, 2), "v": (100, 200)}
    check_sums(found)


def test_a_shared_module_has_the_time_of_all_its_calls(clock):
    model = Tied(Worker(clock, 10, 20), Worker(clock, 3, 4), times=3)
    found = measured(model)
    assert selves(found, "fwd", "bwd") == {"": (9, 12), "child": (30, 60)}
    assert found["child"].calls == 3 and found[""].calls == 1
    check_sums(found)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_neither_forward_nor_backward(clock, reentrant):
    block = nn.Sequential(Worker(clock, 10, 20), Tied(Worker(clock, 1, 2), Worker(clock, 3, 4), times=2))
    model = nn.Sequential(Worker(clock, 100, 200), Checkpointed(block, reentrant=reentrant), Worker(clock, 1000, 2000))
    found = measured(model, steps=2)
    assert selves(found, "fwd", "bwd", "recompute") == {
        "": (0, 0, 0), "0": (100, 200, None), "2": (1000, 2000, None), "1": (0, 0, 0), "1.block": (0, 0, 0),
        "1.block.0": (10, 20, 10), "1.block.1": (6, 8, 6), "1.block.1.child": (2, 4, 2)}
    assert (found[""].fwd_ns, found[""].bwd_ns, found[""].recompute_ns) == (1118, 2232, 18)
    assert found["1.block.1.child"].calls == 2
    check_sums(found)


def test_what_is_before_forward_ends_with_the_first_call_of_several(clock):
    """As where gradients are accumulated."""
    def guard(function):
        return function

    model = Worker(clock, 10, 20)
    timer = TimePass(ModuleScopes(ModuleMap(), guard, lambda _: None, one_thread=True), guard)
    timer.start()
    try:
        clock.now += 5
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
        timer.next_step()
    finally:
        timer.stop()
    step = timer.split(0)
    assert (step.before_forward_ns, step.fwd_ns, step.bwd_ns) == (5, 20, 40)


def test_a_checkpoint_inside_a_checkpoint(clock):
    inner = Checkpointed(Worker(clock, 1, 2), reentrant=False)
    model = nn.Sequential(Worker(clock, 100, 200), Checkpointed(nn.Sequential(Worker(clock, 10, 20), inner),
                                                                reentrant=True))
    found = measured(model)
    assert selves(found, "bwd", "recompute")["1.block.1.block"] == (2, 2), "repeated twice"
    assert selves(found, "bwd", "recompute")["1.block.0"] == (20, 10)
    assert (found[""].bwd_ns, found[""].recompute_ns) == (222, 12)
    check_sums(found)


def test_what_is_outside_of_modules_is_nobody_s(clock):
    inside, outside, other = Worker(clock, 1, 2), Worker(clock, 10, 20), Worker(clock, 100, 200)

    def work(x):
        return Cost.apply(x, outside.weight, clock, *outside.costs)

    def step() -> None:
        work(other(work(inside(work(torch.ones(3)))))).sum().backward()

    found = measure_latency(step)
    assert totals(found, inside)[""] == Latency(calls=1, fwd_ns=1, fwd_self_ns=1, bwd_ns=2, bwd_self_ns=2)
    assert totals(found, other)[""] == Latency(calls=1, fwd_ns=100, fwd_self_ns=100, bwd_ns=200, bwd_self_ns=200)


def test_an_output_that_never_reaches_the_root_s_is_measured(clock):
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.expert = Worker(clock, 1, 2), Worker(clock, 10, 20)

        def forward(self, x):
            self.auxiliary = self.gate(x)
            return self.expert(x)

    model = Router()

    def step() -> None:
        (model(torch.ones(3)).sum() + model.auxiliary.sum()).backward()

    assert selves(totals(measure_latency(step), model), "bwd") == {"": (0,), "gate": (2,), "expert": (20,)}


def test_a_call_inside_itself_counts_once(clock):
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.between = Worker(clock, 10, 20)
            self.own = [Worker(clock, 1, 2)]

        def forward(self, x, depth=2):
            x = Cost.apply(x, self.own[0].weight, clock, 1, 2)
            return self(self.between(x), depth - 1) if depth else x

    found = measured(Recursive())
    assert selves(found, "fwd", "bwd") == {"": (3, 6), "between": (20, 40)}
    assert (found[""].fwd_ns, found[""].bwd_ns, found[""].calls, found["between"].calls) == (23, 46, 1, 2)


def test_backward_may_run_twice_or_in_parts(clock):
    model = nn.Sequential(Worker(clock, 1, 2), Worker(clock, 10, 20))

    def step() -> None:
        out = model(torch.ones(3)).sum()
        out.backward(retain_graph=True)
        torch.autograd.grad(out, [model[1].weight])

    assert selves(totals(measure_latency(step), model), "bwd") == {"": (0,), "0": (2,), "1": (40,)}


@pytest.mark.parametrize("where", ["forward", "backward", "recompute"])
def test_an_exception_charges_nobody_for_what_came_behind_it(clock, where):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("backward")

    class Raises(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = Worker(clock, 0, 0)  # saves its input: backward asks for it again

        def forward(self, x):
            if where == "forward" or torch._C._current_graph_task_id() != -1:
                raise KeyError(where)
            x = self.last(x)
            return Fails.apply(x) if where == "backward" else x

    raises = Checkpointed(Raises(), reentrant=False) if where == "recompute" else Raises()
    bad, good = nn.Sequential(Worker(clock, 1, 2), raises, nn.Tanh()), Worker(clock, 10, 20)

    def step() -> None:
        with pytest.raises(KeyError, match=where):
            bad(torch.ones(3)).sum().backward()
        clock.now += 10**6
        good(torch.ones(3)).sum().backward()
        clock.now += 10**6

    found = measure_latency(step, warmup=2, runs=2)
    assert totals(found, good)[""] == Latency(calls=1, fwd_ns=10, fwd_self_ns=10, bwd_ns=20, bwd_self_ns=20)
    assert totals(found, bad)["0"].fwd_ns == 1
    assert all((latency.bwd_ns or 0) < 10**6 for latency in totals(found, bad).values())


def test_without_backward_nothing_is_said_of_it(clock):
    model = nn.Sequential(Worker(clock, 10, 20), Worker(clock, 1, 2))
    with torch.no_grad():
        found = totals(measure_latency(lambda: model(torch.ones(3))), model)
    assert found[""] == Latency(calls=1, fwd_ns=11, fwd_self_ns=0)


def test_frozen_layers_have_no_backward(clock):
    model = nn.Sequential(Worker(clock, 10, 20), Worker(clock, 1, 2))
    model[0].requires_grad_(False)
    assert selves(measured(model), "bwd") == {"": (0,), "0": (None,), "1": (2,)}


def test_the_graph_and_its_memory_are_left_alone(clock):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(3, 4)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain, seen = gradients(), []
    measure_latency(lambda: seen.append(gradients()), runs=2)
    assert len(seen) == 2 and all(torch.equal(one, other) for again in seen for one, other in
                                  zip(plain, again, strict=True))


def test_no_activation_outlives_the_graph():
    model, alive = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), []
    handle = model[1].register_forward_hook(lambda *call: alive.append(weakref.ref(call[2])))

    def step() -> None:
        model(torch.randn(3, 4)).sum().backward()
        assert alive[-1]() is None

    gc.disable()
    try:
        measure_latency(step, runs=2)
    finally:
        gc.enable()
        handle.remove()


def test_hooks_are_gone_after_a_failure():
    from torch.nn.modules import module as nn_module

    with pytest.raises(ZeroDivisionError):
        measure_latency(lambda: 1 / 0)
    assert not nn_module._global_forward_hooks and not nn_module._global_forward_pre_hooks
