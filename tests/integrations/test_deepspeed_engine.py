"""Jobs of DeepSpeed's engine: totals by hand, collectives as its own logger counts them."""

from __future__ import annotations

import json
from importlib.util import find_spec

import polars as pl
import pytest

from distprof.contract.tables import COLLECTIVES
from support import forked
from support.jobs import SCRIPTS, called, distprof, record_run

PLAN = ("--steps", "wait=2,count=1,time=1,trace=2,arrivals=0")
WIDTH, SAMPLES, RANKS = 16, 8, 2


@pytest.mark.job
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("stage", [2, pytest.param(0, marks=pytest.mark.stress),
                                   pytest.param(1, marks=pytest.mark.stress)])
def test_the_engine_is_recorded_right(tmp_path, stage):
    out = tmp_path / "run"
    with forked.server_that_loads("deepspeed"):
        record_run(out, RANKS, SCRIPTS / "deepspeed_engine.py", tmp_path, stage, flags=PLAN)
    found = json.loads(distprof("stats", "--json", out).stdout)
    assert not found["problems"] and found["topology"] == {"dp": RANKS}
    layer = WIDTH * 4 * WIDTH
    params, macs = 2 * layer + 5 * WIDTH, SAMPLES * 2 * layer
    for quantity, expected in (("params", params), ("stored_params", params), ("fwd_macs", macs),
                               ("fwd_flops", 2 * macs), ("bwd_flops", 4 * macs - 2 * SAMPLES * layer)):
        assert found["model"][quantity] == found["per_gpu"][quantity]["min"] == expected, quantity
    assert found["step"]["samples_per_second"] == pytest.approx(RANKS * SAMPLES / (found["step"]["time_ns"] / 1e9))

    theirs = json.loads((tmp_path / "comms0.json").read_text())
    ours = pl.read_parquet(out / "rank00000" / COLLECTIVES.file)
    assert len(ours) == 2 * sum(sum(sizes.values()) for sizes in theirs["counts"].values()) / theirs["steps"]
    reduced = ours.filter(pl.col("op") == "all_reduce")["size_bytes"].to_list()
    for size, count in theirs["counts"]["all_reduce"].items():
        assert reduced.count(int(size)) == 2 * count / theirs["steps"], size


def test_loggers_of_a_config_are_named_with_what_stands_for_them(tmp_path):
    config, script = tmp_path / "ds.json", tmp_path / "train.py"
    script.write_text("")
    config.write_text(json.dumps({"comms_logger": {"enabled": True}, "wall_clock_breakdown": True}))
    arguments = ("run", "--config", config, "--out", tmp_path / "file", script)
    (tmp_path / "file").touch()  # no rank is started
    said = called(*arguments).stderr
    assert "comms_logger is on" in said and "wall_clock_breakdown is on" in said and "distprof comms" in said
    config.write_text(json.dumps({"wall_clock_breakdown": False}))
    assert "is on" not in called(*arguments).stderr
    config.write_text(json.dumps({"comms_logger": True}))
    assert "must be an object, not" in called(*arguments).stderr
