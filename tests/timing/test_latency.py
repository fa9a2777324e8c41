"""Latency of modules, judged by a clock that only known work moves: self and inclusive, forward, backward, repeated."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from distprof.timing.latency import Latency
from distprof.timing.repetition import measure_latency
from support.attempts import most_hold
from support.jobs import distprof
from support.models import Checkpointed, Sleepy
from support.recording import train


class Clock:
    """Stands still unless work moves it."""

    resolves_at_once = True

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        return self.now

    def resolve(self, mark: int) -> int:
        return mark

    def settle(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("distprof.timing.time_pass.stopwatch", lambda: clock)
    return clock


class Cost(torch.autograd.Function):
    """Takes `forward` and `backward` ticks of a clock."""

    @staticmethod
    def forward(ctx, x, weight, clock, forward, backward):
        ctx.clock, ctx.ticks, ctx.needs = clock, backward, ctx.needs_input_grad
        ctx.save_for_backward(x)
        clock.now += forward
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (_saved,) = ctx.saved_tensors  # repeats the forward call where it is checkpointed
        ctx.clock.now += ctx.ticks
        return grad if ctx.needs[0] else None, grad.sum().reshape(1) if ctx.needs[1] else None, None, None, None


class Worker(nn.Module):
    """Costs what it says; its weight gets a gradient, so it has a backward even where its input needs none."""

    def __init__(self, clock: Clock, forward: int, backward: int) -> None:
        super().__init__()
        self.clock, self.costs = clock, (forward, backward)
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return Cost.apply(x, self.weight, self.clock, *self.costs)


class Tied(nn.Module):
    """Calls one child several times in turn with work of its own between."""

    def __init__(self, child: nn.Module, own: nn.Module, times: int) -> None:
        super().__init__()
        self.child, self.times = child, times
        self.own = [own]  # hidden from the tree of modules

    def forward(self, x):
        for _ in range(self.times):
            x = Cost.apply(self.child(x), self.own[0].weight, self.own[0].clock, *self.own[0].costs)
        return x


class Attention(nn.Module):
    """q, k and v share one input; own work lies between them; v runs on a view, changed in place; weights go unused."""

    def __init__(self, q: nn.Module, k: nn.Module, v: nn.Module, own: nn.Module) -> None:
        super().__init__()
        self.q, self.k, self.v = q, k, v
        self.own = [own]

    def work(self, x):
        return Cost.apply(x, self.own[0].weight, self.own[0].clock, *self.own[0].costs)

    def forward(self, x):
        q = self.work(self.q(x).view(-1)).view_as(x)
        k = self.k(x)
        v = self.v(x)
        k += 1
        v.view(-1).mul_(2)
        out = self.work(q + k + v)
        return {"out": out + x, "weights": (out * 2).mean()}


def totals(found: dict, model: nn.Module) -> dict[str, Latency]:
    return {site.name: latency for site, latency in found.items() if site.model.root.module() is model}


def measured(model: nn.Module, *, steps: int = 1, needs_grad: bool = False, pick=lambda out: out) -> dict[str, Latency]:
    x = torch.ones(2, 3, requires_grad=needs_grad)

    def step() -> None:
        pick(model(x)).sum().backward()

    return totals(measure_latency(step, warmup=1, runs=steps), model)


def selves(found: dict[str, Latency], *phases: str) -> dict[str, tuple]:
    return {name: tuple(getattr(latency, f"{phase}_self_ns") for phase in phases)
            for name, latency in found.items()}


def check_sums(found: dict[str, Latency]) -> None:
    """Self times add up to the root, in each phase."""
    for phase in ("fwd", "bwd", "recompute"):
        own = [getattr(latency, f"{phase}_self_ns") for latency in found.values()]
        assert sum(filter(None, own)) == (getattr(found[""], f"{phase}_ns") or 0)


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


trees = st.recursive(
    st.tuples(st.just("leaf"), st.integers(0, 99), st.integers(0, 99)),
    lambda inner: st.one_of(
        st.tuples(st.just("chain"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("tied"), inner, st.integers(0, 99), st.integers(0, 99), st.integers(1, 3)),
        st.tuples(st.just("attention"), inner, inner, inner, st.integers(0, 99), st.integers(0, 99)),
    ), max_leaves=8)


class Out(nn.Module):
    """The tensor of a dict."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)["out"]


def build(clock: Clock, tree: tuple, path: str, expected: dict[str, list[int]], calls: int = 1) -> nn.Module:
    """The model of a tree; `expected` gets forward and backward self time of each of its modules."""
    def child(part: tuple, name: str, times: int = 1) -> nn.Module:
        return build(clock, part, f"{path}.{name}".lstrip("."), expected, calls * times)

    kind, *parts = tree
    if kind == "leaf":
        expected[path] = [calls * parts[0], calls * parts[1]]
        return Worker(clock, *parts)
    if kind == "chain":
        expected[path] = [0, 0]
        return nn.Sequential(*(child(part, str(index)) for index, part in enumerate(parts[0])))
    if kind == "tied":
        inner, forward, backward, times = parts
        expected[path] = [calls * times * forward, calls * times * backward]
        return Tied(child(inner, "child", times), Worker(clock, forward, backward), times)
    *inner, forward, backward = parts
    expected[path] = [0, 0]
    path = f"{path}.inner".lstrip(".")
    expected[path] = [2 * calls * forward, 2 * calls * backward]
    return Out(Attention(*(child(part, name) for part, name in zip(inner, "qkv", strict=True)),
                         Worker(clock, forward, backward)))


@given(tree=trees, needs_grad=st.booleans(), steps=st.integers(1, 2))
def test_every_module_of_any_model_has_what_it_costs(tree, needs_grad, steps):
    clock, expected = Clock(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distprof.timing.time_pass.stopwatch", lambda: clock)
        found = measured(build(clock, tree, "", expected), needs_grad=needs_grad, steps=steps)
    assert selves(found, "fwd", "bwd") == {path: tuple(own) for path, own in expected.items()}
    for path, latency in found.items():
        below = [own for name, own in expected.items() if name == path or name.startswith(f"{path}.") or not path]
        assert (latency.fwd_ns, latency.bwd_ns) == tuple(map(sum, zip(*below, strict=True)))
    check_sums(found)


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


class SleepyBlock(nn.Module):
    """Sleeping q, k and v on one input that needs no gradient, then a nested and a checkpointed sleeper."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Sequential(nn.Linear(4, 4), Sleepy(0.01, 0.02)) for _ in range(3))
        self.again = Sleepy(0.01, 0.02)
        self.kept = Sleepy(0.01, 0.02)

    def forward(self, x):
        mixed = self.again(self.q(x)) + self.again(self.k(x)) + self.v(x)
        return checkpoint(self.kept, mixed, use_reentrant=True)


def test_sleepers_take_what_they_sleep(tmp_path):
    model = SleepyBlock()
    rows = train(tmp_path / "run", model, lambda: torch.randn(2, 4), steps="wait=1,count=0,time=4,trace=0",
                 num_steps=5).modules()

    def holds(found: float, slept: list[float], calls: int) -> bool:
        return found >= sum(slept[calls:]) / 4 * 1e9  # how close is exact on a simulated clock, and in `make stress`

    for path, module, calls in (("q.1", model.q[1], 1), ("k.1", model.k[1], 1), ("v.1", model.v[1], 1),
                                ("again", model.again, 2)):
        assert holds(rows[path]["fwd_time_ns"], module.slept_forward, calls)
        assert holds(rows[path]["bwd_time_ns"], module.slept_backward, calls)
        assert rows[path]["fwd_self_time_ns"] == rows[path]["fwd_time_ns"]
    assert holds(rows["kept"]["fwd_time_ns"], model.kept.slept_forward[::2], 1)
    assert holds(rows["kept"]["recompute_time_ns"], model.kept.slept_forward[1::2], 1)
    assert holds(rows["kept"]["bwd_time_ns"], model.kept.slept_backward, 1)
    for phase in ("fwd", "bwd", "recompute"):
        own = sum(row[f"{phase}_self_time_ns"] or 0 for row in rows.values())
        assert own == pytest.approx(rows[""][f"{phase}_time_ns"], rel=1e-9)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_stats_show_recomputed_time_where_there_is_some(tmp_path, checkpointed):
    block = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(block, reentrant=False) if checkpointed else block, nn.Tanh())
    train(tmp_path / "run", model, lambda: torch.randn(2, 4))
    shown = distprof("stats", tmp_path / "run")
    assert shown.returncode == 0, shown.stderr
    assert ("recomputed" in next(line for line in shown.stdout.splitlines() if "top modules" in line)) == checkpointed


@pytest.mark.stress
@pytest.mark.parametrize("needs_grad", [False, True])
def test_ten_and_twenty_milliseconds_are_within_five_percent_of_what_was_slept(tmp_path, needs_grad):
    def attempt(_: object) -> None:
        model, warmup, runs = SleepyBlock(), 2, 20
        x = torch.randn(2, 4, requires_grad=needs_grad)
        found = totals(measure_latency(lambda: model(x).sum().backward(), warmup=warmup, runs=runs), model)

        def slept(naps: list[float]) -> object:
            per_run = len(naps) // (warmup + runs)
            return pytest.approx(sum(naps[warmup * per_run:]) / runs * 1e9, rel=0.05)

        for path, module in (("q.1", model.q[1]), ("k.1", model.k[1]), ("v.1", model.v[1]), ("again", model.again)):
            assert found[path].fwd_self_ns == slept(module.slept_forward), path
            assert found[path].bwd_self_ns == slept(module.slept_backward), path
        assert found["kept"].fwd_self_ns == slept(model.kept.slept_forward[::2])
        assert found["kept"].recompute_self_ns == slept(model.kept.slept_forward[1::2])
        assert found["kept"].bwd_self_ns == slept(model.kept.slept_backward)
        assert found[""].fwd_ns == pytest.approx(sum(latency.fwd_self_ns for latency in found.values()), rel=1e-9)

    most_hold(attempt, tmp_path, of=5, at_least=4)
