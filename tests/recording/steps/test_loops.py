"""Training loops of many kinds in one process: what a step is, what is counted in it, and what is said about it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import distprof
from distprof.recording.steps.evaluation import CallsWithoutGradient
from support.recording import Recorded

pytestmark = pytest.mark.long

SHORT = "wait=2,count=1,time=1,trace=1"
X = torch.ones(2, 4)
PRODUCT = 2 * 2 * 4 * 4
"""FLOPs of a linear layer of width 4 for `X`."""


class Critic(nn.Linear):
    pass


class Generator(nn.Linear):
    pass


class Pair:
    """Two models with an optimizer each."""

    def __init__(self) -> None:
        self.critic, self.generator = Critic(4, 4), Generator(4, 4)
        self.first, self.second = (torch.optim.SGD(one.parameters(), lr=1e-3) for one in (self.critic, self.generator))

    def step_first(self) -> None:
        descend(self.first, self.critic(X))

    def step_second(self) -> None:
        descend(self.second, self.critic(self.generator(X)))


def descend(optimizer: torch.optim.Optimizer, result: torch.Tensor) -> None:
    optimizer.zero_grad()
    result.square().sum().backward()
    optimizer.step()


def looped(run: Path, iterate: Callable[[int], None], number: int, *, steps: str = SHORT, **more) -> Recorded:
    with distprof.record(run, steps=steps, **more):
        for index in range(number):
            iterate(index)
    return Recorded(run)


def counted_alone(iterate: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        iterate()
    return counter.get_total_flops()


def total(seen: Recorded, *phases: str) -> int:
    return sum(sum(seen.flops(phase).values()) for phase in phases)


@pytest.mark.parametrize("wait", [0, 2])
def test_five_steps_of_a_critic_and_one_of_a_generator_are_one_step(tmp_path, wait):
    pair = Pair()

    def iterate(_index: int = 0) -> None:
        for _ in range(5):
            pair.step_first()
        pair.step_second()

    seen = looped(tmp_path / "run", iterate, 5, steps=f"wait={wait},count=1,time=1,trace=1")
    assert seen.info["status"] == "complete", seen.info["why"]
    assert seen.info["passes"] == {"wait": wait, "count": 1, "time": 1, "trace": 1, "arrivals": 0}
    found = seen.info["steps_found"]
    assert [(one["name"], one["steps"]) for one in found["optimizers"]] == [("Critic's SGD", 5), ("Generator's SGD", 1)]
    assert (found["rule"], found["looked_at"], found["left_in"]) == ("pattern", 12, None)
    assert total(seen, "forward", "backward") == counted_alone(iterate)
    assert seen.table("steps")["forward_calls"].to_list()[wait:] == [7] * 3


def test_an_iteration_that_is_over_before_the_pattern_is_clear_is_a_step_of_the_wait_pass(tmp_path):
    pair = Pair()
    seen = looped(tmp_path / "run", lambda _: (pair.step_first(), pair.step_second()), 5)
    steps = seen.table("steps")
    assert steps["pass"].to_list() == ["wait", "wait", "count", "time", "trace"]
    assert steps["start_ns"].is_sorted() and (steps["duration_ns"] > 0).all()
    assert steps["forward_calls"].to_list() == [None, None, 3, 3, 3]


def test_an_optimizer_that_never_steps_is_waited_for_and_named(tmp_path):
    pair = Pair()
    seen = looped(tmp_path / "run", lambda _: pair.step_first(), 16)
    assert seen.info["status"] == "complete"
    assert seen.info["steps_found"]["silent"] == ["SGD"] and seen.info["steps_found"]["looked_at"] == 12
    assert total(seen, "forward") == PRODUCT


def test_optimizers_without_a_pattern_end_a_step_with_the_most_frequent_one(tmp_path):
    pair, random = Pair(), iter(torch.rand(99, generator=torch.Generator().manual_seed(2)).tolist())
    sparse = itertools.count()

    def iterate(_index: int) -> None:
        pair.step_first()
        if next(random) < 0.2 and next(sparse) % 3:
            pair.step_second()

    seen = looped(tmp_path / "run", iterate, 90)
    found = seen.info["steps_found"]
    assert found["rule"] in ("irregular", "pattern")
    assert found["rule"] == "irregular" or found["left_in"] is not None, "a pattern by chance does not last"


def test_optimizers_that_step_while_backward_runs_end_one_step_together(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    own = {one: torch.optim.SGD([one], lr=1e-3) for one in model.parameters()}
    hooks = [one.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
             for one, optimizer in own.items()]

    def iterate(_index: int = 0) -> None:
        model(X).square().sum().backward()

    seen = looped(tmp_path / "run", iterate, 5)
    alone = counted_alone(iterate)
    for hook in hooks:
        hook.remove()  # else they would keep the optimizers alive for the rest of the tests
    assert seen.info["status"] == "complete", seen.info["why"]
    assert seen.info["steps_found"]["rule"] == "backward"
    assert total(seen, "forward", "backward") == alone
    steps = seen.table("steps")
    assert steps["forward_calls"].to_list() == [1] * 5
    timed = steps.filter(pl.col("pass") == "time").row(0, named=True)
    assert timed["optimizer_ns"] > 0 and timed["bwd_ns"] + timed["optimizer_ns"] <= timed["duration_ns"]
    optimizing = seen.table("ops").filter(pl.col("phase") == "optimizer")
    assert set(optimizing["op"]) & {"aten::add_", "aten::_foreach_add_"}, "it is no part of backward"


def test_a_step_that_a_gradient_scaler_leaves_out_ends_an_iteration(tmp_path):
    model = nn.Linear(4, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=4.0)
    own = torch.amp.GradScaler.step

    def iterate(index: int) -> None:
        optimizer.zero_grad()
        scaler.scale(model(X).square().sum() * (float("inf") if index % 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()

    seen = looped(tmp_path / "run", iterate, 6, steps="wait=1,count=2,time=2,trace=1")
    assert seen.info["status"] == "complete" and seen.info["steps_found"]["skipped"] == 3
    assert seen.table("steps")["forward_calls"].to_list() == [1] * 6
    assert total(seen, "forward") == PRODUCT
    assert torch.amp.GradScaler.step is own


def test_an_optimizer_inside_another_steps_once(tmp_path):
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    model = nn.Linear(4, 4)
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    seen = looped(tmp_path / "run", lambda _: descend(optimizer, model(X)), 5)
    assert seen.info["status"] == "complete"
    assert [one["name"] for one in seen.info["steps_found"]["optimizers"]] == ["Linear's Wrapper"]


def test_an_optimizer_that_raised_is_over(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def refuse() -> None:
        raise ArithmeticError

    def iterate(_index: int) -> None:
        with pytest.raises(ArithmeticError):
            optimizer.step(refuse)
        descend(optimizer, model(X))

    seen = looped(tmp_path / "run", iterate, 5)
    assert seen.info["status"] == "complete", seen.info
    assert set(seen.table("ops").filter(pl.col("op") == "aten::mm")["phase"]) == {"backward"}


# --- closures ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")  # of LBFGS in torch 2.8
@pytest.mark.parametrize("by_name", [True, False])
def test_what_a_closure_runs_is_forward_and_backward_as_without_one(tmp_path, by_name):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=4, tolerance_grad=0, tolerance_change=0)
    calls = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = model(X).square().sum() + 1
        loss.backward()
        return loss

    seen = looped(
        tmp_path / "run", lambda _: optimizer.step(closure=closure) if by_name else optimizer.step(closure), 5)
    per_step = len(calls) // 5
    assert per_step == 4 and all(calls)
    # the input needs no gradient: one product forward, one backward, a call
    assert (total(seen, "forward"), total(seen, "backward")) == (per_step * PRODUCT, per_step * PRODUCT)
    ops = seen.table("ops")
    assert set(ops.filter(pl.col("op") == "aten::pow")["phase"]) == {"forward", "backward"}, "the loss is not"
    assert set(ops.filter(pl.col("op") == "aten::dot")["phase"]) == {"optimizer"}
    steps = seen.table("steps")
    assert steps["samples"].to_list() == [2, None, 2, 2, 2], "the same samples each time"
    timed = steps.filter(pl.col("pass") == "time").row(0, named=True)
    parts = [timed[name] for name in ("before_forward_ns", "fwd_ns", "bwd_ns", "optimizer_ns")]
    assert all(part > 0 for part in parts) and sum(parts) <= timed["duration_ns"]


def test_what_an_optimizer_does_in_front_of_its_closure_counts_once(tmp_path):
    class Slow(torch.optim.SGD):
        def step(self, closure):
            time.sleep(0.02)
            closure()
            super().step()

    model = nn.Linear(4, 4)
    optimizer = Slow(model.parameters(), lr=0.1)
    seen = looped(tmp_path / "run", lambda _: optimizer.step(lambda: model(X).square().sum().backward()), 5)
    timed = seen.table("steps").filter(pl.col("pass") == "time").row(0, named=True)
    assert timed["optimizer_ns"] > 20e6 > timed["before_forward_ns"]


# --- evaluation ----------------------------------------------------------------------------------------------------


class Trained:
    """A model that is trained, and another one."""

    def __init__(self) -> None:
        self.model, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def train(self, result: torch.Tensor) -> None:
        descend(self.optimizer, result)

    def validated(self, _index: int) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(4):
                self.model(X)
        self.model.train()
        self.train(self.model(X))

    def inferred(self, _index: int) -> None:
        with torch.inference_mode():
            self.model(X)
        self.train(self.model(X))

    def validated_with_gradients(self, _index: int) -> None:
        self.train(self.model(X))
        self.model.eval()
        self.model(X)
        self.model.train()

    def validated_at_times(self, index: int) -> None:
        if index in (0, 2, 4):
            self.validated(index)
        else:
            self.train(self.model(X))

    def rolled_out(self, index: int) -> None:
        """With the model as it is, in some of the steps."""
        with torch.no_grad():
            for _ in range(3 if index in (0, 2) else 0):
                self.model(X)
        self.train(self.model(X))

    def taught(self, _index: int) -> None:
        with torch.no_grad():
            self.other(X)
        self.train(self.model(X))

    def averaged(self, _index: int) -> None:
        self.other.requires_grad_(False).eval()
        self.train(self.model(X) - self.other(X))

    def trained_through(self, _index: int) -> None:
        self.other.requires_grad_(False).eval()
        self.train(self.other(self.model(X)))

    def trained_in_eval_mode(self, _index: int) -> None:
        self.model.eval()
        self.train(self.model(X))

    def checkpointed(self, _index: int) -> None:
        self.train(checkpoint(self.model, X.clone().requires_grad_(), use_reentrant=True))


@pytest.mark.parametrize(("what", "forward", "evaluation", "params"), [
    ("validated", 1, 4, 20), ("validated_at_times", 1, 4, 20), ("rolled_out", 1, 3, 20), ("inferred", 2, 0, 20),
    ("validated_with_gradients", 1, 1, 20), ("averaged", 2, 0, 20), ("taught", 2, 0, 20),
    ("trained_through", 2, 0, 40), ("trained_in_eval_mode", 1, 0, 20), ("checkpointed", 1, 0, 20)])
def test_forward_calls_without_gradient_are_work_if_every_step_has_them(tmp_path, what, forward, evaluation, params):
    seen = looped(tmp_path / "run", getattr(Trained(), what), 5)
    assert seen.info["status"] == "complete"
    assert (total(seen, "forward"), total(seen, "evaluation")) == (forward * PRODUCT, evaluation * PRODUCT)
    assert seen.info["params"]["params"] == params
    steps = seen.table("steps")
    some = what in ("validated_at_times", "rolled_out")
    if not some:
        assert {*zip(steps["forward_calls"][2:], steps["evaluation_calls"][2:], strict=True)} == {(forward, evaluation)}
    steps = steps.filter(pl.col("pass") == ("count" if some else "time")).row(0, named=True)
    assert (steps["forward_calls"], steps["evaluation_calls"]) == (forward, evaluation)
    assert some or (steps["evaluation_ns"] is not None) == bool(evaluation)
    modules = seen.modules().values()
    assert sum(row["fwd_flops"] for row in modules) == forward * PRODUCT
    assert sum(row["evaluation_flops"] for row in modules) == evaluation * PRODUCT


def test_the_script_s_word_holds_that_it_evaluates(tmp_path):
    trained = Trained()
    with distprof.record(tmp_path / "run", steps=SHORT) as rec:
        for _ in range(5):
            with rec.evaluation(), torch.no_grad():
                trained.other(X)
            trained.train(trained.model(X))
    seen = Recorded(tmp_path / "run")
    assert (total(seen, "forward"), total(seen, "evaluation")) == (PRODUCT, PRODUCT)
    assert seen.table("steps")["evaluation_calls"].to_list()[2:] == [1] * 3


@given(st.lists(st.booleans(), max_size=8), st.booleans())
def test_calls_without_gradient_are_work_if_all_steps_have_them(later, at_first):
    """The first step, in which a script tries things, decides nothing by itself."""
    calls, site, other = CallsWithoutGradient(), object(), object()
    for number, seen in enumerate((at_first, *later)):
        if seen:
            calls.saw(site)
        calls.saw(other)
        calls.step_ended(number)
    assert calls.are_work(site) == (all(later) and at_first + sum(later) >= 2)
    assert calls.are_work(other) == bool(later)


def test_samples_are_those_of_the_model_that_gets_most(tmp_path):
    pair = Pair()

    def iterate(_index: int) -> None:
        for _ in range(2):  # accumulation: each time others
            (pair.critic(torch.ones(3, 4)) + pair.generator(torch.ones(3, 4))).sum().backward()
        pair.first.step()
        pair.second.step()

    assert looped(tmp_path / "run", iterate, 5).table("steps")["samples"].to_list()[2:] == [6] * 3


# --- what the user says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "calls"), [(3, 3), ("Adam", 2)])
def test_the_user_says_what_ends_a_step(tmp_path, monkeypatch, every, calls):
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    plain, adam = torch.optim.SGD(model.parameters(), lr=1e-3), torch.optim.Adam(other.parameters())

    def iterate(_index: int) -> None:
        descend(plain, model(X))
        descend(adam, other(X))

    monkeypatch.setenv("DISTPROF_STEP_EVERY", "9")  # what is said in the script wins
    seen = looped(tmp_path / "run", iterate, 8, step_every=every)
    assert seen.info["status"] == "complete" and seen.info["steps_found"]["given"] == str(every)
    assert set(seen.table("steps")["forward_calls"].to_list()[2:]) == {calls}
    assert total(seen, "forward") == calls * PRODUCT


def test_the_environment_says_what_ends_a_step(tmp_path, monkeypatch):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monkeypatch.setenv("DISTPROF_STEP_EVERY", "2")
    assert total(looped(tmp_path / "run", lambda _: descend(optimizer, model(X)), 10), "forward") == 2 * PRODUCT


@pytest.mark.parametrize("every", ["0", "-1", "two steps", "1.5", ""])
def test_what_is_neither_a_class_nor_a_number_is_refused(tmp_path, every):
    from distprof.errors import UsageError

    with pytest.raises(UsageError) as caught, distprof.record(tmp_path / "run", step_every=every):
        pass
    assert caught.value.hint


def test_a_class_that_never_steps_is_said(tmp_path, capfd):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = looped(tmp_path / "run", lambda _: descend(optimizer, model(X)), 4, step_every="Adma")
    assert seen.info["status"] == "partial" and "none that ends a step by --step-every Adma" in seen.info["why"]
    assert "--step-every" in capfd.readouterr().err


def test_explicit_steps_end_the_search_for_a_pattern(tmp_path):
    pair = Pair()
    with distprof.record(tmp_path / "run", steps="wait=1,count=1,time=1,trace=1") as rec:
        for index in range(4):
            pair.step_first()
            if index % 2:
                pair.step_second()
            rec.step()
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete" and seen.info["steps_found"]["rule"] == "explicit"
    assert seen.info["steps_found"]["left_in"] is None
    assert seen.table("steps")["forward_calls"].to_list() == [1, 3, 1, 3]


def test_explicit_steps_that_come_too_late_are_said(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=1,trace=1") as rec:
        for _ in range(4):
            for _ in range(2):
                descend(optimizer, model(X))
            rec.step()
    assert Recorded(tmp_path / "run").info["steps_found"]["left_in"] == 2


def test_inference_before_the_first_optimizer_is_waited_for_in_the_wait_pass(tmp_path):
    model = nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps="wait=5,count=1,time=1,trace=1"):
        with torch.no_grad():
            for _ in range(3):
                model(X)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(7):
            descend(optimizer, model(X))
    seen = Recorded(tmp_path / "run")
    assert seen.info["status"] == "complete" and seen.info["steps_found"]["rule"] == "optimizer"
    assert (total(seen, "forward"), total(seen, "backward")) == (PRODUCT, PRODUCT)


def test_an_optimizer_that_takes_the_place_of_another_goes_on_ending_steps(tmp_path):
    model = nn.Linear(4, 4)
    holder = [torch.optim.SGD(model.parameters(), lr=1e-3)]

    def iterate(index: int) -> None:
        if index == 3:
            holder[0] = torch.optim.Adam(model.parameters())
        descend(holder[0], model(X))

    assert looped(tmp_path / "run", iterate, 6).info["status"] == "complete"
