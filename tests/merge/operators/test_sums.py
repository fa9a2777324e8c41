"""Ranks that are added up as they come, against sums of plain Python over all their rows."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from statistics import median

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.operators import sums
from distprof.merge.operators.categories import category_of
from distprof.merge.operators.grouping import grouped, grouped_sums
from distprof.merge.operators.rank_share import SCHEMA
from distprof.merge.operators.sums import BY, RunSums, added_up

TYPES = {**SCHEMA, "compute_ns": pl.Float64(), "memory_ns": pl.Float64()}
AMOUNTS = ("calls", "self_host_ns", "host_ns", "self_device_ns", "device_ns")
MAYBE = ("flops", "bytes", "self_allocated_bytes", "freed_bytes")
times = st.integers(0, 4 * 10**9)
rates = st.none() | st.floats(0, 1e12)


@st.composite
def rows(draw):
    """A row of a rank."""
    found = {"op": draw(st.sampled_from("abc")), "shapes": draw(st.sampled_from([None, "[[2]]", "[[3]]"])),
             "module_path": draw(st.sampled_from([None, "", "layers.0"])), "type": "operator",
             "step": draw(st.sampled_from([None, 0, 1, 7])),
             "calls": draw(st.integers(1, 9)), "compute_ns": draw(rates), "memory_ns": draw(rates)}
    found |= {name: draw(times) for name in ("self_host_ns", "host_ns", "duration_ns", "min_ns", "max_ns")}
    found |= {name: draw(st.just(0) | times) for name in ("self_device_ns", "device_ns")}
    return found | {name: draw(st.none() | times) for name in MAYBE} | {"squared_ns": float(draw(times)) ** 2}


ranks = st.lists(st.lists(rows(), max_size=5), min_size=1, max_size=5)
by = st.lists(st.sampled_from(["op", "shape", "module", "step", "rank", "phase"]), min_size=1, max_size=3, unique=True)


def frame(rank, found):
    return pl.DataFrame([{"rank": rank, **one} for one in found], schema={
        name: TYPES[name] for name in ("rank", *found[0])} if found else {"rank": pl.Int64()}).select(
        pl.col(name).cast(kind) if found and name in ("rank", *found[0]) else pl.lit(None, kind).alias(name)
        for name, kind in TYPES.items()).head(len(found))


def in_pieces(parts, names):
    sums = RunSums([BY[one] for one in names])
    for part in parts:
        sums.add(added_up(part, sums.keys))
    return grouped_sums(sums)


def only(values):
    return next(iter(values)) if len(set(values)) == 1 else None


def slowest(of_ranks, names, there):
    """Rank and ratio, by the time that ranks with a row of the group have."""
    if "rank" in names or there < 2 or len(of_ranks) < 2:
        return None, None
    most, middle = max(of_ranks.values()), median(of_ranks.values())
    return min(rank for rank, time in of_ranks.items() if time == most), most / middle if middle else None


def judge(row, own, names, there, busy):
    """One row of the table against the rows that it is made of."""
    for name in AMOUNTS:
        assert row[name] == sum(one[name] for one in own)
    for name in MAYBE:
        known = [one[name] for one in own if one[name] is not None]
        assert row[name] == (sum(known) if known else None)
    for name in BY.values():
        assert row[name] == only([one.get(name) for one in own])
    assert (row["min_ns"], row["max_ns"]) == (min(one["min_ns"] for one in own), max(one["max_ns"] for one in own))
    assert row["num_ranks"] == len({one["rank"] for one in own})
    of_ranks = dict.fromkeys((one["rank"] for one in own), 0)
    for one in own:
        of_ranks[one["rank"]] += one[busy]
    assert (row["slowest_rank"], row["slowest_ratio"]) == slowest(of_ranks, names, there)
    took, calls = (sum(one[name] for one in own) for name in ("duration_ns", "calls"))
    mean, squared = Fraction(took, calls), sum(Fraction(one["squared_ns"]) for one in own) / calls
    assert row["mean_ns"] == pytest.approx(float(mean))
    assert row["std_ns"] == pytest.approx(sqrt(max(squared - mean ** 2, 0)), rel=1e-6, abs=1e-7 * sqrt(squared) + 1e-9)
    limited = sum(one[busy.removeprefix("self_")] for one in own if one["compute_ns"] is not None)
    least = sum(Fraction(max(one["compute_ns"] or 0.0, one["memory_ns"] or 0.0)) for one in own)
    assert row["roofline_ratio"] == (pytest.approx(float(least / limited), rel=1e-12) if limited and least else None)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(ranks, by, st.integers(1, 4))
def test_every_number_is_that_of_all_rows(of_ranks, names, at_once):
    parts = [frame(rank, found) for rank, found in enumerate(of_ranks)]
    every = [{"rank": rank, "category": category_of(one["op"], one["type"], None), **one}
             for rank, found in enumerate(of_ranks) for one in found]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "AT_ONCE", at_once)
        table = in_pieces(parts, names)
    groups = dict[tuple[object, ...], list[dict[str, object]]]()
    for one in every:
        groups.setdefault(tuple(one.get(BY[name]) for name in names), []).append(one)
    busy = "self_device_ns" if any(one["self_device_ns"] for one in every) else "self_host_ns"
    order = sorted(groups, key=lambda key: -sum(one[busy] for one in groups[key]))
    assert [tuple(row[BY[name]] for name in names) for row in table.iter_rows(named=True)] == order
    for row, key in zip(table.iter_rows(named=True), order, strict=True):
        judge(row, groups[key], names, len({one["rank"] for one in every}), busy)
    total = sum(one[busy] for one in every)
    shares = [pytest.approx(sum(one[busy] for one in groups[key]) / total) if total else None for key in order]
    assert table["share"].to_list() == shares


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [3, 16, 17, 40])
def test_chance_is_that_of_all_ranks_at_once(num_ranks):
    drawn = np.random.default_rng(num_ranks).integers(1000, 2000, (num_ranks, 8, 4)) * [1, 2, 3, 4]
    drawn[2, :, 1] *= 2
    parts = [frame(rank, [{"op": "abcd"[op], "step": step, "type": "operator", "calls": 1, "squared_ns": 1.0,
                           "min_ns": 1, "max_ns": 1, "device_ns": 0, "self_device_ns": 0, "host_ns": int(of[step, op]),
                           "self_host_ns": int(of[step, op])} for step in range(8) for op in range(4)])
             for rank, of in enumerate(drawn)]
    found, whole = in_pieces(parts, ["op"]), grouped(pl.concat(parts), ["op"])
    assert found.equals(whole)
    row = found.row(by_predicate=pl.col("op") == "b", named=True)
    assert row["slowest_rank"] == 2 and row["slowest_p_value"] <= 0.01


def test_many_steps_and_groups_are_told_apart_behind_small_numbers():
    """Types are as small as the numbers of the ranks that came: the next one has larger ones."""
    one = {"type": "operator", "calls": 1, "squared_ns": 1.0, "min_ns": 1, "max_ns": 1, "device_ns": 0,
           "self_device_ns": 0, "host_ns": 5, "self_host_ns": 5}
    few = frame(0, [{"op": "a", "step": 1, **one}])
    many = frame(70_000, [{"op": f"op{number}", "step": 3_000_000_000, **one, "self_host_ns": 2**40 + number}
                          for number in range(300)])
    sums = RunSums(["op"])
    for part in (few, many):
        sums.add(added_up(part, sums.keys))
        assert len(sums.groups) in (1, 301)
    table = grouped_sums(sums)
    assert table["self_host_ns"].to_list() == [*(2**40 + number for number in reversed(range(300))), 5]
    assert sums.ranks == [0, 70_000] and sums.steps == [1, 3_000_000_000]
