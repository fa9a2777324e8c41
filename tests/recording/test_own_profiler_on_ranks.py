"""The script's own profiler on all ranks, or on some: passes of the ranks stay on the same steps."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from support.jobs import SCRIPTS, distprof, record_run

pytestmark = pytest.mark.job
PLAN = ("--steps", "wait=1,count=1,time=3,trace=2,arrivals=2")


def passes(out: Path, rank: int) -> dict[int, str]:
    """Step -> pass."""
    rows = pl.read_parquet(out / f"rank{rank:05d}" / "steps.parquet")
    return dict(rows.select("step", "pass").iter_rows())


def test_where_all_ranks_are_profiled_the_plan_goes_on_behind_it_on_all(tmp_path):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "profiles_itself.py", "0,1", 3, 4, flags=PLAN)
    expected = ["wait", "count", "time", "wait", "wait", "time", "time", "trace", "trace", "arrivals", "arrivals"]
    for rank in (0, 1):
        assert list(passes(out, rank).values()) == expected
    told = distprof("stats", "--strict", out)
    assert told.returncode == 0, "nothing is missing"
    assert "the script ran its own torch.profiler in steps 3-4 of ranks 0 and 1" in told.stdout


def test_where_one_rank_is_profiled_the_others_go_on_and_what_it_misses_is_said(tmp_path):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "profiles_itself.py", "1", 3, 4, flags=PLAN)
    assert list(passes(out, 0).values()) == ["wait", "count", *["time"] * 3, *["trace"] * 2, *["arrivals"] * 2]
    assert list(passes(out, 1).values()) == ["wait", "count", "time", "wait", "wait", *["trace"] * 2, *["arrivals"] * 2]
    told = distprof("stats", out).stdout
    assert "rank 1: the script ran its own torch.profiler, so these steps are missing on this rank: 2 of time" in told
    assert "in steps 3-4 of rank 1" in told
    assert json.loads((out / "rank00001" / "rank.json").read_text())["profiled_steps"] == [3, 4]
    rows = pl.read_parquet(out / "rank00001" / "collectives.parquet")
    assert set(rows["step"].to_list()) == {5, 6, 7, 8}
