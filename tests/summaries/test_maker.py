"""Summaries hold what the tables of their rank hold: steps, totals, and times of the calls that are kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from distprof.contract.rank_summary import (
    CALL_COLUMNS,
    CELL_COLUMNS,
    KIND_COLUMNS,
    MOST_BYTES,
    MOST_CALLS,
    MOST_MODULES,
    NO_OFFSET,
    SEQUENCE_COLUMNS,
    SPENT_COLUMNS,
    TIMES,
    Arrivals,
    PackedTable,
)
from distprof.contract.tables import COLLECTIVES, MODULES, OPS, PARAMETERS, STEPS
from distprof.summaries.channels import places_of
from distprof.summaries.host_file import packed_frame
from distprof.summaries.maker import STATISTICS, summarise
from support.many_ranks import PipelinedJob, made_up_rank


def of(table: PackedTable, kinds: dict[str, str]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(table.columns[name], kind) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    recorded, folder = made_up_rank(tmp_path_factory.mktemp("run"))
    return recorded, folder, summarise(folder)


def kept_times(found: Arrivals) -> dict[tuple[int, int, str | None, int], dict[str, int | None]]:
    """(step, group, op of messages, place) -> times, as the docstrings of the contract say they are read."""
    sequences, cells, calls = (of(table, kinds) for table, kinds in (
        (found.sequences, SEQUENCE_COLUMNS), (found.cells, CELL_COLUMNS), (found.calls, CALL_COLUMNS)))
    first = np.cumsum(sequences["kept"]) - sequences["kept"]
    times, at, rows = {name: np.frombuffer(found.times[name], "<i4") for name in TIMES}, 0, {}
    for step, sequence, base in zip(cells["step"], cells["sequence"], cells["base_ns"], strict=True):
        channel = found.channels[sequences["channel"][sequence]]
        for number in range(sequences["kept"][sequence]):
            place = int(calls["place"][first[sequence] + number])
            rows[int(step), channel.group, channel.op, channel.peer, place] = {
                name: None if times[name][at] == NO_OFFSET else int(times[name][at]) * found.unit_ns
                + (0 if name == TIMES[-1] else int(base)) for name in TIMES}
            at += 1
    return rows


def test_kept_times_are_those_of_the_table(made):
    _, folder, summary = made
    table = pl.read_parquet(folder / COLLECTIVES.file)
    found = kept_times(summary.arrivals)
    names = {(one.name, one.description): number for number, one in enumerate(summary.arrivals.groups)}
    is_message = table["op"].cast(pl.String).is_in(["send", "recv"])
    table = table.with_columns(way=pl.when(is_message).then(pl.col("op").cast(pl.String)),
                               other=pl.when(is_message).then(pl.col("peer")))
    looked_at = 0
    for (step, group, about, way, other), rows in table.group_by(
            "step", "group", "group_description", "way", "other", maintain_order=True):
        for place, row in enumerate(rows.iter_rows(named=True)):
            key = (step, names[group, about], way, other, place)
            if key in found:
                looked_at += 1
                assert {name: row[name] for name in TIMES[:-1]} == {name: found[key][name] for name in TIMES[:-1]}
    assert looked_at == len(found) > 100


def test_every_call_is_counted(made):
    _, folder, summary = made
    kinds, texts = of(summary.arrivals.kinds, KIND_COLUMNS), summary.arrivals.kinds.texts
    counted = Counter()
    for row in range(len(kinds["op"])):
        counted[texts["op"][kinds["op"][row]]] += int(kinds["calls"][row])
    table = pl.read_parquet(folder / COLLECTIVES.file)
    assert counted == Counter(table["op"].cast(pl.String).to_list())
    assert kinds["sum_bytes"].sum() == table["size_bytes"].sum()
    assert kinds["waited_ns"].sum() == (table["wait_end_ns"] - table["wait_start_ns"]).sum()


def test_what_ranks_spend_adds_up_to_their_steps(made):
    _, folder, summary = made
    spent = of(summary.arrivals.spent, SPENT_COLUMNS)
    durations = dict(pl.read_parquet(folder / STEPS.file).select("step", "duration_ns").iter_rows())
    for step in set(spent["step"].tolist()):
        assert spent["ns"][spent["step"] == step].sum() == durations[step]


def test_ops_keep_their_totals(made):
    _, folder, summary = made
    table, ops = pl.read_parquet(folder / OPS.file), summary.ops
    for name in ("calls", "macs", "flops", "io_bytes", "recompute_macs"):
        assert np.frombuffer(ops.columns[name], "<f8").sum() == pytest.approx(table[name].sum(), rel=1e-12)
    named = {ops.texts["op"][number] for number in np.frombuffer(ops.columns["op"], "<i4")}
    assert named == {"operators", "aten::frobnicate"}  # what has no formula keeps its name


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


@pytest.mark.long
def test_a_large_job_stays_small(tmp_path):
    """Hundreds of layers, whose calls and modules there is no room for."""
    job = PipelinedJob(pp=2, dp=1, tp=2, layers=60, microbatches=4)
    recorded, folder = made_up_rank(tmp_path, rank=1, job=job)
    found = summarise(folder)
    assert len(packed_frame(found)) < MOST_BYTES / 4
    assert found.modules.rows == MOST_MODULES
    assert found.cut["modules"] == len(recorded.modules(1)) - MOST_MODULES
    assert found.cut["activities"] > 0
    assert len(found.arrivals.times["end_ns"]) <= 4 * MOST_CALLS
    assert "arrivals" not in found.cut


def test_kept_places_come_from_all_parts_and_in_turns_from_others():
    for count in (1, 2, 7, 8, 9, 31, 500, 10_007):
        seen = set()
        for turn in range(4):
            places = places_of(count, 8, turn, is_message=False)
            assert places[-1] == count - 1
            assert min(count, 8) - 1 <= len(places) <= 8
            # ranks with room for fewer keep some of the same
            for fewer in (4, 2, 1):
                assert set(places_of(count, fewer, turn, is_message=False)) <= set(places)
            if count > 8:
                assert np.diff(places).max() <= 2 * count / 8 + 1
            seen |= set(places.tolist())
        assert len(seen) > min(count, 16) - 1


def test_layers_that_repeat_are_all_seen():
    seen = {int(place) % 4 for turn in range(4) for place in places_of(32, 8, turn, is_message=False)}
    assert seen == {0, 1, 2, 3}


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
