"""Files of hosts hold what the tables of their ranks hold: steps, totals, and every call with its times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace as replace_struct

from distprof.contract.rank_summary import WAIT_COLUMNS, PackedTable
from distprof.contract.tables import COLLECTIVES, MODULES, OPS, PARAMETERS, STEPS
from distprof.merge.run.summaries.frames import rows_of_ranks
from distprof.merge.run.summaries.summaries import read_summaries
from distprof.summaries.arrivals import arrivals_of
from distprof.summaries.host_file import append, packed_frame
from distprof.summaries.maker import STATISTICS, summarise
from distprof.summaries.rank_calls import rank_calls
from support.many_ranks import made_up_rank


def of(table: PackedTable, kinds: dict[str, str]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(table.columns[name], kind) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    recorded, folder = made_up_rank(tmp_path_factory.mktemp("run"))
    return recorded, folder, summarise(folder)


def test_every_call_is_there(made):
    """And all that the table says of it, in the same order."""
    _, folder, summary = made
    append(folder.parent, summary)
    found = read_summaries([folder.parent])
    (ranks, rows), = rows_of_ranks(found, mp_size=4, dp_size=2)
    table = pl.read_parquet(folder / COLLECTIVES.file).with_columns(pl.col(pl.Categorical).cast(pl.String))
    assert ranks == [5] and len(rows) == len(table) > 100
    for name in set(rows.columns) - {"mp_size", "dp_size", "split_bytes"}:
        assert rows[name].equals(table[name].cast(rows.schema[name])), name


def test_steps_longer_than_their_unit(made):
    """Times far apart are kept in larger units."""
    _, folder, _ = made
    calls = rank_calls(folder / COLLECTIVES.file)
    long = replace(calls, enqueue=calls.enqueue + (calls.enqueue - calls.enqueue[0]) * 2)
    found = arrivals_of(replace(long, start=long.enqueue, end=long.enqueue + 10**10), None)
    assert 1 < found.unit_ns <= 16
    held = np.frombuffer(found.times["end_ns"], "<i4").astype(np.int64) * found.unit_ns
    assert (np.abs(held - 10**10) < found.unit_ns).all()


def test_how_long_ranks_wait(made):
    _, folder, summary = made
    waits = of(summary.arrivals.waits, WAIT_COLUMNS)
    table = pl.read_parquet(folder / COLLECTIVES.file)
    # a thread of this job waits for one thing at a time
    expected = dict(table.group_by("step").agg((pl.col("wait_end_ns") - pl.col("wait_start_ns")).sum()).iter_rows())
    assert dict(zip(waits["step"].tolist(), waits["blocked_ns"].tolist(), strict=True)) == expected
    durations = dict(pl.read_parquet(folder / STEPS.file).select("step", "duration_ns").iter_rows())
    for step, in_ns in zip(waits["step"].tolist(), waits["in_ns"].tolist(), strict=True):
        spans = table.filter(pl.col("step") == step).select("start_ns", "end_ns").sort("start_ns").rows()
        covered, until = 0, 0
        for start, end in spans:
            covered, until = covered + max(end - max(start, until), 0), max(until, end)
        assert in_ns == pytest.approx(covered, abs=1000) and in_ns <= durations[step]


def test_ops_keep_their_totals(made):
    _, folder, summary = made
    table, ops = pl.read_parquet(folder / OPS.file), summary.ops
    for name in ("calls", "macs", "flops", "io_bytes", "recompute_macs"):
        assert np.frombuffer(ops.columns[name], "<f8").sum() == pytest.approx(table[name].sum(), rel=1e-12)
    named = {ops.texts["op"][number] for number in np.frombuffer(ops.columns["op"], "<i4")}
    assert named == set(table["op"].cast(pl.String)) and ops.rows == table.select(
        pl.struct("op", "phase", "dtype", "counted", "view").n_unique()).item()


def test_groups_are_ranges(made):
    recorded, _, summary = made
    expected = {name: ranks for name, _, ranks in recorded.groups(5).values()}
    assert {one.name: one.ranks for one in summary.arrivals.groups} == expected
    assert all(len(one.ranges) == 1 for one in summary.arrivals.groups)


@pytest.mark.parametrize("table", [STEPS, MODULES, OPS, PARAMETERS, COLLECTIVES])
def test_a_damaged_table_costs_what_is_in_it(tmp_path, table):
    _, folder = made_up_rank(tmp_path)
    whole = summarise(folder)
    content = (folder / table.file).read_bytes()
    (folder / table.file).write_bytes(content[:len(content) // 2])
    found = summarise(folder)
    assert found.damaged == [table.file]
    assert table.file not in found.tables
    kept = {one.file for one in (STEPS, MODULES, OPS, PARAMETERS, COLLECTIVES)} - {table.file}
    assert set(found.tables) == kept
    assert (found.modules == whole.modules) is (table is not MODULES)


def test_a_table_of_other_columns_is_damaged(tmp_path):
    _, folder = made_up_rank(tmp_path)
    pl.DataFrame({"step": ["a", "b"]}).write_parquet(folder / COLLECTIVES.file)
    assert summarise(folder).damaged == [COLLECTIVES.file]


def test_a_call_takes_few_bytes(made):
    _, _, summary = made
    assert len(packed_frame(replace_struct(summary, modules=PackedTable(), ops=PackedTable(), steps=PackedTable()))) < (
        15 * summary.tables[COLLECTIVES.file] + 4000)


def test_statistics_are_those_of_the_inference():
    from distprof.merge.topology import evidence

    assert STATISTICS == evidence.STATISTICS


def test_tables_that_polars_wrote_again_tell_the_same(made, tmp_path):
    _, folder, summary = made
    again = tmp_path / "run" / folder.name
    again.mkdir(parents=True)
    (again / "rank.json").write_bytes((folder / "rank.json").read_bytes())
    for path in folder.glob("*.parquet"):
        pl.read_parquet(path).write_parquet(again / path.name)  # numbers its texts with unsigned integers
    assert summarise(again) == summary
