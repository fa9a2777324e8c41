"""Tables of what explains a change: they add up, and what all items have in common is told apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.difference.attribution import items_table, parts_table
from distprof.merge.difference.change import Change, exact
from distprof.merge.difference.samples import Noise, Samples
from distprof.merge.difference.split import is_communication
from distprof.merge.text.difference.headlines import headlines

PAIR = Noise()


def samples(times: dict[str, float], *, seed: int = 0, steps: int = 12, scatter: float = 0.01) -> Samples:
    """Items that take so many ms on each of two ranks, half of it forward."""
    random = np.random.default_rng(seed)
    items = [(name, side) for name in times for side in ("forward", "backward")]
    means = np.repeat(list(times.values()), 2) / 2 * 1e6
    return Samples(items=items, values=means * (1 + scatter * random.normal(size=(steps, 2, len(items)))))


def table(base: dict[str, float], new: dict[str, float], **kinds):
    return items_table([samples(base, seed=1)], [samples(new, seed=2)], PAIR, has_common=True, **kinds)


EVEN = {"a": 3.0, "b": 3.0, "c": 3.0, "d": 3.0, "e": 2.0}


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=6), st.lists(st.floats(0, 1e9), min_size=2, max_size=6),
       st.integers(1, 3), st.integers(1, 3), st.floats(-1e9, 1e9))
def test_rows_and_rest_add_up(before, after, num_base, num_new, difference):
    def run(values):
        return Samples(items=[(f"item{place}", "forward") for place in range(len(values))],
                       values=np.array(values) * np.linspace(0.9, 1.1, 6)[:, None, None])

    sides = [run(before)] * num_base, [run(after)] * num_new
    noise = Noise(base_queued=[None] * num_base, new_queued=[0.3] * num_new)
    found = items_table(*sides, noise, has_common=True, difference_ns=difference)
    total = sum(row.change.difference for row in found.rows) + found.rest_ns
    assert total == pytest.approx(difference, abs=1e-3 * max(*before, *after, 1))
    parts = parts_table(*sides, noise, difference)
    assert len(parts.rows) <= max(len(before), len(after))
    assert sum(row.change.difference or 0 for row in parts.rows) + parts.rest_ns == pytest.approx(difference, abs=1)


def test_a_slow_module_is_told_from_a_slow_machine():
    found = table(EVEN, {name: 1.3 * ms * (1.2 if name == "c" else 1) for name, ms in EVEN.items()})
    assert found.common == pytest.approx(1.3, rel=0.01)
    first = found.rows[0]
    assert first.item == "c" and first.own.difference == pytest.approx(0.2 * 3e6, rel=0.1)
    assert first.change.difference == pytest.approx((1.3 * 1.2 - 1) * 3e6, rel=0.05)


def test_communication_decides_no_factor_and_keeps_its_own_change():
    base = {**EVEN, "c10d::allreduce_": 10.0}
    found = table(base, {**EVEN, "c10d::allreduce_": 2.0}, apart=is_communication)
    assert found.common == pytest.approx(1.0, rel=0.01)
    (row,) = (row for row in found.rows if row.item == "c10d::allreduce_")
    assert row.own == row.change and row.change.difference == pytest.approx(-8e6, rel=0.05)


def test_a_factor_is_claimed_only_where_most_of_the_time_is_near_it():
    factors = {"a": 0.2, "b": 1.0, "c": 1.7, "d": 3.0, "e": 6.0}
    assert table(EVEN, {name: ms * factors[name] for name, ms in EVEN.items()}).common is None


def test_a_part_that_a_side_does_not_know_is_unknown():
    base, new = (Samples(items=items, values=np.full((6, 2, len(items)), 1e6)) for items in (
        ["forward"], ["forward", "backward"]))
    (row,) = (row for row in parts_table([base], [new], PAIR, 1e6).rows if row.item == "backward")
    assert (row.change.base, row.change.difference, row.change.verdict) == (None, None, "added")


def test_a_slow_machine_alone_changes_no_module():
    found = table(EVEN, {name: 1.3 * ms for name, ms in EVEN.items()})
    assert {row.own.verdict for row in found.rows} == {"noise"}


def test_one_module_that_takes_most_of_the_time_is_no_machine():
    most = {"a": 20.0, "b": 3.0, "c": 3.0, "d": 3.0}
    found = table(most, {**most, "a": 24.0})
    assert found.common is None and found.rows[0].item == "a" and found.rows[0].own.verdict == "changed"


def test_few_modules_have_nothing_in_common():
    assert table({"a": 3.0, "b": 3.0}, {"a": 4.0, "b": 4.0}).common is None


def test_what_only_one_side_has():
    found = table(EVEN, {**{name: ms for name, ms in EVEN.items() if name != "d"}, "f": 5.0})
    assert {row.item: row.only_in for row in found.rows if row.only_in} == {"d": "base", "f": "new"}
    assert [row.item for row in found.rows[:2]] == ["f", "d"]


def test_what_does_other_work_comes_before_noise():
    found = table(EVEN, {**EVEN, "a": 3.05}, counted={"e": exact(10, 12), "b": exact(5, 5)})
    assert [row.own.verdict for row in found.rows] == ["noise"] * 5
    assert found.rows[0].item == "e"


def test_sides_are_differences_of_the_item():
    found = table(EVEN, {**EVEN, "c": 4.0}).rows[0]
    assert set(found.sides) == {"forward", "backward"} and found.sides["forward"] == pytest.approx(5e5, rel=0.1)


def test_waits_vary_like_the_step_where_ranks_lack_processors():
    base, new = (Samples(items=["exposed", "forward"], values=np.full((10, 2, 2), (ms * 1e6, 20e6)) + np.arange(
        10)[:, None, None]) for ms in (1.0, 4.0))
    quiet, busy = (parts_table([base], [new], Noise(base_queued=[queued], new_queued=[queued]), 3e6).rows[0]
                   for queued in (0.0, 0.5))
    assert quiet.item == "exposed" and quiet.change.verdict == "changed"
    assert busy.change.verdict == "unknown"


def counts(changed):
    return {name: Change(base=1e6, new=2e6 if name in changed else 1e6, low=0.0, high=0.0) for name in EVEN}


def test_other_work_comes_first_where_it_singles_a_module_out():
    noisy = EVEN | {"b": 3.01, "d": 3.5}
    sides = [samples(EVEN, seed=1, scatter=0.5)], [samples(noisy, seed=2, scatter=0.5)]
    first = items_table(*sides, PAIR, has_common=False, counted=counts({"a"})).rows[0].item
    by_size = items_table(*sides, PAIR, has_common=False).rows[0].item
    wider = items_table(*sides, PAIR, has_common=False, counted=counts(set(EVEN))).rows[0].item
    assert first == "a" and wider == by_size != "a"


def test_the_use_of_the_device_is_a_percentage_as_in_stats():
    rates = {"samples_per_second": Change(base=300, new=400), "flops_per_second": Change(base=None, new=None),
             "mfu": Change(base=0.094, new=0.134)}
    found = SimpleNamespace(notes=(), facts=(), collective_counts={}, step=None, cpu=None, rates=rates, modules=None)
    _, samples, mfu = headlines(found)
    assert samples.startswith("samples/s 300 -> 400: ") and mfu.startswith("MFU 9.4 % -> 13.4 %: +42.6 %")
