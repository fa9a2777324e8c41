"""Ranks that distprof recorded, many of them: made of a real run, all files their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from distprof.contract.merged_tables import MERGED_COLLECTIVES
from distprof.errors import DataError
from distprof.merge.activity import timelines
from distprof.merge.commands.critical_path import CriticalView, critical_paths
from distprof.merge.run import tables
from support.drawn_rows import collective, frame
from support.jobs import clean_environ, distprof
from support.many_ranks import write_run


@pytest.fixture
def of_many_ranks(tmp_path, sharded):
    """Makes a run of so many ranks of one of 2."""
    def make(num_ranks: int) -> Path:
        write_run(sharded, tmp_path / f"of{num_ranks}", num_ranks)
        return tmp_path / f"of{num_ranks}"
    return make


def peak_bytes(*words: object) -> int:
    """The largest resident set of a command."""
    process = subprocess.Popen([sys.executable, "-m", "distprof", *map(str, words)], stdout=subprocess.DEVNULL,
                               env=clean_environ())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_lists_of_ranks_are_written_in_small_pieces(tmp_path, monkeypatch):
    rows = frame(*(collective(number, dict.fromkeys(range(4), (number, number + 1))) for number in range(9)))
    tables.write(tmp_path, MERGED_COLLECTIVES, rows, {})
    whole = pl.read_parquet(tmp_path / MERGED_COLLECTIVES.file)
    monkeypatch.setattr(tables, "RANKS_AT_ONCE", 20)
    tables.write(tmp_path, MERGED_COLLECTIVES, [rows[:7], rows[7:9], rows[9:]], {}, longest=4)
    assert pl.read_parquet(tmp_path / MERGED_COLLECTIVES.file).equals(whole)
    assert whole["group_ranks"].to_list() == [[0, 1, 2, 3]] * 36
    assert pq.ParquetFile(tmp_path / MERGED_COLLECTIVES.file).num_row_groups == 8  # 36 rows, 20 // 4 at once


def test_every_rank_is_merged_with_its_collectives(of_many_ranks):
    run = of_many_ranks(6)
    merged = pl.read_parquet(_merged(run) / "collectives.parquet")
    each = pl.read_parquet(run / "rank00003" / "collectives.parquet")
    assert merged["rank"].value_counts()["count"].to_list() == [len(each)] * 6
    assert merged["complete"].all() and merged["num_ranks"].unique().to_list() == [6]


def test_timelines_that_are_not_held_are_read_again(of_many_ranks, monkeypatch):
    run, read = of_many_ranks(4), list[int]()
    slices_of = timelines.slices_of
    monkeypatch.setattr(timelines, "slices_of", lambda rank, line: (read.append(rank.number), slices_of(rank, line))[1])
    shown = critical_paths(run, view=CriticalView(as_json=True))
    assert sorted(read) == sorted(set(read)) and read
    monkeypatch.setattr(timelines, "HELD", 1)
    assert critical_paths(run, view=CriticalView(as_json=True)) == shown
    monkeypatch.setattr(timelines, "slices_of", lambda *_: None)
    with pytest.raises(DataError, match=r"expected the timeline of rank \d as it was read before, found none"):
        critical_paths(run, view=CriticalView(as_json=True))


def _merged(run: Path) -> Path:
    done = distprof("merge", run)
    assert done.returncode == 0, done.stderr
    return run / "merged"


@pytest.mark.stress
@pytest.mark.parametrize(("command", "bytes_a_rank"), [("merge", 400_000), ("comms", 200_000), ("ops", 500_000)])
def test_memory_grows_with_collectives_not_with_events(of_many_ranks, command, bytes_a_rank):
    """Where the events of all ranks are held it is 510,000, 330,000 and 1,230,000 bytes a rank."""
    few, many = (peak_bytes(command, of_many_ranks(count)) for count in (8, 264))
    assert many - few < 256 * bytes_a_rank
