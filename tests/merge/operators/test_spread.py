"""The rank that is slow in an operator, and ranks that are equal."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from distprof.merge.operators.grouping import grouped
from distprof.merge.operators.rank_share import SCHEMA
from support.jobs import called
from support.made_up_traces import folder, op

NUMBERS = {"flops": pl.Int64, "causal_flops": pl.Int64, "bytes": pl.Int64,
           "compute_ns": pl.Float64, "memory_ns": pl.Float64}


def rows(times):
    """A row for each rank, step and operator: shape (ranks, steps, operators)."""
    rank, step, operator = (one.ravel() for one in np.indices(times.shape))
    found = pl.DataFrame({"rank": rank, "step": step, "op": [f"aten::op{number}" for number in operator],
                          "self_host_ns": times.ravel().astype(np.int64)})
    found = found.with_columns(host_ns="self_host_ns", calls=pl.lit(1), type=pl.lit("operator"),
                               self_device_ns=pl.lit(0), device_ns=pl.lit(0), squared_ns=pl.lit(0.0))
    kinds = SCHEMA | NUMBERS
    return found.with_columns(pl.lit(None).alias(name) for name in kinds if name not in found.columns).select(
        pl.col(name).cast(kind) for name, kind in kinds.items())


def significance(times, by=("op",)):
    return {row["op"]: (row["slowest_rank"], row["slowest_p_value"])
            for row in grouped(rows(times), by).iter_rows(named=True)}


@pytest.mark.long
def test_equal_ranks_are_rarely_told_apart():
    """One table in a hundred by chance; 4 are 3 deviations more."""
    random, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        times = random.lognormal(10, 1, (4, 8, 25)) * np.logspace(0, 3, 25)
        alarms += any(chance <= 0.01 for _, chance in significance(times).values())
    assert alarms <= 4


def test_a_rank_that_is_slow_in_one_operator_is_found_and_no_other():
    random = np.random.default_rng(2)
    times = random.lognormal(10, 0.05, (4, 8, 25)) * np.logspace(0, 3, 25)
    times[3, :, 7] *= 1.3
    found = significance(times)
    assert found["aten::op7"][0] == 3 and found["aten::op7"][1] <= 0.01
    assert [name for name, (_, chance) in found.items() if chance <= 0.01] == ["aten::op7"]


@pytest.mark.parametrize("shape", [(1, 8), (4, 2)])
def test_one_rank_or_two_steps_tell_nothing(shape):
    assert {chance for _, chance in significance(np.full((*shape, 3), 1000)).values()} == {None}


def test_steps_that_a_rank_lacks_are_not_compared():
    table = rows(np.random.default_rng(3).lognormal(10, 0.01, (4, 6, 2)))
    alike = grouped(table, ["op"])["slowest_p_value"].to_list()
    more = table.filter(pl.col("rank") == 1).with_columns(step=pl.col("step") + 6, self_host_ns=pl.lit(10**9, pl.Int64))
    assert grouped(pl.concat([table, more]), ["op"])["slowest_p_value"].to_list() == alike
    assert grouped(table.filter(pl.col("step") < pl.col("rank") + 2), ["op"])["slowest_p_value"].to_list() == [None] * 2


def test_a_million_groups_are_shown_and_the_first_compared():
    table = rows(np.full((2, 8, 300), 1000))
    found = grouped(table, ["op"])["slowest_p_value"]
    assert found.len() == 300 and found.count() == 100


def test_the_screen_names_a_rank_where_it_is_no_chance(tmp_path):
    def rank(mm):
        events = [op(f"ProfilerStep#{step}", 100 * step, 99, cat="user_annotation") for step in range(6)]
        return events + [one for step in range(6) for one in (
            op("aten::mm", 100 * step, mm + step % 2), op("aten::add", 100 * step + 50, 20 + step * 7 % 5))]

    text = called("ops", folder(tmp_path, *map(rank, (10, 10, 30, 10, 10)))).stdout
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("aten::")}
    assert "2 (2.90 x median, p = 0.0" in lines["aten::mm"] and lines["aten::add"].endswith("- (1.00 x median)"), text
