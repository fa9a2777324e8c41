"""Latency of every module of any model, drawn at random: self and inclusive, forward and backward."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from support.ticks import Attention, Clock, Tied, Worker, check_sums, measured, selves

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


@given(tree=trees, needs_grad=st.booleans(), steps=st.integers(1, 2), most_marks=st.sampled_from([0, 1 << 16]))
def test_every_module_of_any_model_has_what_it_costs(tree, needs_grad, steps, most_marks):
    clock, expected = Clock(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distprof.timing.time_pass.stopwatch", lambda: clock)
        patch.setattr("distprof.timing.time_pass.MOST_MARKS", most_marks)
        found = measured(build(clock, tree, "", expected), needs_grad=needs_grad, steps=steps)
    assert selves(found, "fwd", "bwd") == {path: tuple(own) for path, own in expected.items()}
    for path, latency in found.items():
        below = [own for name, own in expected.items() if name == path or name.startswith(f"{path}.") or not path]
        assert (latency.fwd_ns, latency.bwd_ns) == tuple(map(sum, zip(*below, strict=True)))
    check_sums(found)
