"""Ranks that distprof recorded, many of them: made of a real run, all files their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from distprof.contract.merged import MERGED_COLLECTIVES
from distprof.errors import DataError
from distprof.launch.commands.critical_path import critical_path_text
from distprof.merge.activity import rank_slices
from distprof.merge.chrome.drawing import collectives
from distprof.merge.cost import measured_parts, measured_run
from distprof.merge.run import tables
from distprof.merge.run.scanned_tables import scan_table
from distprof.merge.writing.merge import merge
from support.drawn_rows import collective, frame
from support.jobs import distprof
from support.many_ranks import write_run
from support.peak_memory import peak_bytes


@pytest.fixture
def of_many_ranks(tmp_path, sharded):
    """Makes a run of so many ranks of one of 2."""
    def make(num_ranks: int) -> Path:
        write_run(sharded, tmp_path / f"of{num_ranks}", num_ranks)
        return tmp_path / f"of{num_ranks}"
    return make


@pytest.mark.parametrize(("splits", "groups"), [(None, [8, 8, 8, 8, 4]), ([1] * 8, [4] * 9)])
def test_rows_are_written_together_that_hold_so_much_however_they_come(tmp_path, monkeypatch, splits, groups):
    rows = frame(*(collective(number, dict.fromkeys(range(4), (number, number + 1)), split_bytes=splits)
                   for number in range(9)))
    monkeypatch.setattr(tables, "WRITTEN_AT_ONCE", 64)
    written = []
    for frames in (rows, [rows[:7], rows[7:9], rows[9:9], rows[9:]], rows.iter_slices(1)):
        tables.write(tmp_path, MERGED_COLLECTIVES, frames, {})
        file = tmp_path / MERGED_COLLECTIVES.file
        written.append(file.read_bytes())
        about = pq.ParquetFile(file).metadata
        assert [about.row_group(number).num_rows for number in range(about.num_row_groups)] == groups
    assert pl.read_parquet(file)["group_ranks"].to_list() == ["0-3"] * 36 and len(set(written)) == 1


def test_a_run_of_format_1_is_read_as_one_of_today(of_many_ranks, tmp_path):
    """There, ranks of groups were lists."""
    run = of_many_ranks(3)
    old = tmp_path / "old"
    shutil.copytree(run, old)
    for file in old.glob("rank*/collectives.parquet"):
        rows = pl.read_parquet(file).drop("group_size")
        rows.with_columns(pl.lit(pl.Series([[0, 1, 2]])).first().alias("group_ranks")).write_parquet(file)
    assert pl.read_parquet_schema(old / "rank00002" / "collectives.parquet")["group_ranks"] == pl.List(pl.Int64)
    merged, of_old = (pl.read_parquet(_merged(one) / "collectives.parquet") for one in (run, old))
    assert_frame_equal(merged, of_old)
    assert set(of_old["group_ranks"]) == {"0-2"} and set(of_old["group_size"]) == {3}
    assert scan_table([old], "collectives").select("group_ranks").collect()["group_ranks"][0].to_list() == [0, 1, 2]


def test_every_rank_is_merged_with_its_collectives(of_many_ranks):
    run = of_many_ranks(6)
    merged = pl.read_parquet(_merged(run) / "collectives.parquet")
    each = pl.read_parquet(run / "rank00003" / "collectives.parquet")
    assert merged["rank"].value_counts()["count"].to_list() == [len(each)] * 6
    assert merged["complete"].all() and merged["num_ranks"].unique().to_list() == [6]


@pytest.mark.parametrize("damage", ["none", "one", "all"])
def test_a_merge_in_parts_writes_the_same_bytes(of_many_ranks, tmp_path, monkeypatch, damage):
    run = of_many_ranks(5)
    for rank in {"none": (), "one": (3,), "all": range(5)}[damage]:
        (run / f"rank{rank:05}" / "collectives.parquet").write_bytes(b"PAR1 no table PAR1")
    merge(run, out=tmp_path / "whole")
    monkeypatch.setattr(measured_run, "HELD_ROWS", 20)
    monkeypatch.setattr(collectives, "PART_ROWS", 20)
    seen = list[int]()
    measured = measured_parts.measured_parts
    monkeypatch.setattr(measured_parts, "measured_parts", lambda rows, *more: (seen.append(len(rows)),
                                                                               measured(rows, *more))[1])
    merge(run, out=tmp_path / "parts")
    assert [*map(bool, seen)] == [True] * (damage != "all")
    whole, parts = ({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in sorted(
        (tmp_path / name).rglob("*")) if path.is_file()} for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and {name for name in whole if whole[name] != parts[name]} == set()


def test_timelines_that_are_not_held_are_read_again(of_many_ranks, monkeypatch):
    run, read = of_many_ranks(4), list[int]()
    slices_of = rank_slices.slices_of
    monkeypatch.setattr(
        rank_slices, "slices_of", lambda rank, line: (read.append(rank.number), slices_of(rank, line))[1])
    shown = critical_path_text(run, as_json=True)
    assert sorted(read) == sorted(set(read)) and read
    monkeypatch.setattr(rank_slices, "HELD", 1)
    assert critical_path_text(run, as_json=True) == shown
    monkeypatch.setattr(rank_slices, "slices_of", lambda *_: None)
    with pytest.raises(DataError, match=r"the timeline of rank \d changed while it was being read: none"):
        critical_path_text(run, as_json=True)


def _merged(run: Path) -> Path:
    done = distprof("merge", run)
    assert done.returncode == 0, done.stderr
    return run / "merged"


@pytest.mark.stress
@pytest.mark.parametrize(("command", "bytes_a_rank"), [("merge", 400_000), ("comms", 200_000), ("ops", 100_000)])
def test_memory_grows_with_collectives_not_with_events(of_many_ranks, command, bytes_a_rank):
    """Where the events of all ranks are held it is 510,000, 330,000 and 1,230,000 bytes a rank; 258,000 of `ops` where
    the rows of its operators are.
    """
    few, many = (peak_bytes(command, of_many_ranks(count)) for count in (8, 264))
    assert many - few < 256 * bytes_a_rank
