"""`distprof.read_run`: the parts of a run as frames, beside what the commands show."""

from __future__ import annotations

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.contract.merged import MERGED_COLLECTIVES, MERGED_MODULES, MERGED_STEPS
from distprof.errors import DataError
from support.jobs import called
from support.kineto_files import DLRM, needs_shared


@pytest.mark.job
def test_frames_are_what_a_merge_writes_and_commands_show(tp):
    run = distprof.read_run(tp)
    assert run.ranks == [0, 1, 2, 3] and run.summary == json.loads(called("stats", "--json", tp).stdout)
    for frame, table in ((run.modules(), MERGED_MODULES), (run.steps(), MERGED_STEPS),
                         (run.collectives(), MERGED_COLLECTIVES)):
        written = pl.read_parquet(tp / "merged" / table.file)
        assert_frame_equal(frame.select(table.names()), written, check_dtypes=False, categorical_as_str=True)
    ops = run.ops()
    shown = json.loads(called("ops", "--json", tp).stdout)
    assert dict(ops.filter(pl.col("type").is_in(["operator", "runtime"])).group_by("op").agg(
        pl.col("self_host_ns").sum()).iter_rows()) == {row["op"]: row["self_host_ns"] for row in shown["ops"]}
    events = run.events()
    assert {"rank", "name", "start_ns", "step"} <= set(events.columns)
    assert events["rank"].unique().sort().to_list() == run.ranks


@pytest.mark.long
@needs_shared
def test_traces_of_other_programs_have_operators_and_collectives():
    run = distprof.read_run(DLRM / "kineto")
    assert run.ops()["self_device_ns"].sum() > 0 and len(run.collectives()) == 64
    for part in (run.modules, run.steps, run.events):
        with pytest.raises(DataError, match=r"has foreign traces without (modules|steps)|no merge with"):
            part()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(DataError):
        distprof.read_run(tmp_path / "missing")
