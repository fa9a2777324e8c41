"""What totals mean, on real runs: model = mp_size x per GPU, and data parallelism changes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from distprof.merge.text.phrases import brief
from support.jobs import EXAMPLES, distprof, record_run

QUANTITIES = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops")
COUNT_ONLY = ("--steps", "wait=0,count=1,time=0,trace=0")


def summary(run: Path) -> dict:
    return json.loads(distprof("stats", "--json", run).stdout)


@pytest.fixture(scope="module")
def unsharded(recordings) -> dict:
    """The model of train_tp.py on one rank, without tensor parallelism."""
    return summary(recordings.get("unsharded", lambda out: record_run(
        out, 1, EXAMPLES / "train_tp.py", "--tp", 1, "--steps", 1, flags=COUNT_ONLY)))


@pytest.fixture(scope="module")
def ddp_by_size(alone, ddp) -> dict[int, dict]:
    return {4: summary(ddp), 1: summary(alone)}


def test_model_totals_are_mp_size_times_per_gpu(tp):
    found = summary(tp)
    assert (found["mp_size"], found["dp_size"], found["topology"]) == (2, 2, {"dp": 2, "tp": 2})
    for quantity in QUANTITIES:
        assert found["model"][quantity] == 2 * found["per_gpu"][quantity]["mean"], quantity
        assert found["per_gpu"][quantity]["min"] == found["per_gpu"][quantity]["max"]


def test_tensor_parallel_work_is_that_of_the_unsharded_model(tp, unsharded):
    sharded = summary(tp)["model"]
    for quantity in ("fwd_macs", "fwd_flops", "bwd_flops"):
        assert sharded[quantity] == unsharded["model"][quantity] > 0, quantity
    assert sharded["unique_params"] == unsharded["model"]["params"] == unsharded["model"]["unique_params"]
    # norms, embeddings and biases behind a row-wise split are on both ranks
    assert sharded["params"] > sharded["unique_params"]


def test_data_parallelism_changes_neither_per_gpu_numbers_nor_model_totals(ddp_by_size):
    for quantity in QUANTITIES:
        for level in ("per_gpu", "model"):
            ours, alone = ddp_by_size[4][level][quantity], ddp_by_size[1][level][quantity]
            if level == "per_gpu":
                ours, alone = ours["mean"], alone["mean"]
            assert ours == alone, quantity
    assert ddp_by_size[4]["model"]["unique_params"] == ddp_by_size[1]["model"]["params"]


def test_counts_are_those_of_an_independent_count(ddp_by_size):
    sys.path.insert(0, str(EXAMPLES))
    try:
        from train_ddp import Transformer
    finally:
        sys.path.remove(str(EXAMPLES))
    batch, length, width, depth, vocabulary = 8, 64, 128, 4, 1000
    tokens = batch * length
    linear = depth * tokens * width * width * (3 + 1 + 4 + 4) + tokens * width * vocabulary
    attention = depth * 2 * batch * length * length * width
    found = ddp_by_size[1]
    assert found["model"]["fwd_macs"] == linear + attention
    assert found["model"]["fwd_flops"] == 2 * (linear + attention)
    # backward: two products per linear layer, five instead of two per attention (the scores once more)
    assert found["model"]["bwd_flops"] == 2 * (2 * linear + attention * 5 // 2)
    model = Transformer()
    assert found["model"]["params"] == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, length, dtype=torch.long))
    # torch before 2.15 does not count attention on CPU
    assert counter.get_total_flops() in (2 * linear, 2 * (linear + attention))


def test_modules_add_up_to_the_model(ddp):
    rows = pl.read_parquet(ddp / "rank00000" / "modules.parquet")
    root = rows.filter(pl.col("module_path") == "").row(0, named=True)
    for quantity in ("params", "fwd_flops", "bwd_flops"):
        children = rows.filter((pl.col("depth") == 1) & (pl.col("module_path") != "layers"))
        layers = rows.filter((pl.col("depth") == 2) & pl.col("module_path").str.starts_with("layers."))
        assert children[quantity].sum() + layers[quantity].sum() == root[quantity], quantity
    ops = pl.read_parquet(ddp / "rank00000" / "ops.parquet")
    assert ops.filter(pl.col("phase") == "forward")["flops"].sum() == root["fwd_flops"]
    assert ops.filter(pl.col("phase") == "backward")["flops"].sum() == root["bwd_flops"]
    assert rows["own_params"].sum() == root["params"]


def test_times_are_measured_and_nested(ddp):
    rows = pl.read_parquet(ddp / "rank00000" / "modules.parquet")
    times = {row["module_path"]: row for row in rows.to_dicts()}
    for path in ("layers.0", "layers.3.attention", "layers.1.mlp"):
        inner = [row for row in times.values() if row["module_path"].rpartition(".")[0] == path]
        for column in ("fwd_time_ns", "bwd_time_ns"):
            assert 0 < sum(row[column] for row in inner) < times[path][column] * 1.05 < times[""][column] * 1.05
    steps = pl.read_parquet(ddp / "rank00000" / "steps.parquet").filter(pl.col("pass") == "time")
    assert len(steps) == 3
    parts = steps["before_forward_ns"] + steps["fwd_ns"] + steps["bwd_ns"] + steps["optimizer_ns"]
    assert (parts <= steps["duration_ns"]).all()
    assert (parts > 0).all(), "the rest is the loss and waiting for a core"


def test_samples_per_second_counts_replicas_not_ranks(tp, ddp):
    for run, replicas in ((tp, 2), (ddp, 4)):
        found = summary(run)
        steps = pl.read_parquet(run / "merged" / "steps.parquet").filter(pl.col("pass") == "time")
        assert set(steps["samples"]) == {8}
        expected = replicas * 8 / (found["step"]["time_ns"] / 1e9)
        assert found["step"]["samples_per_second"] == pytest.approx(expected)


def test_the_text_says_what_the_json_says(tp):
    text, found = distprof("stats", tp).stdout, summary(tp)
    assert "4 ranks = dp 2 x tp 2   mp_size 2, dp_size 2" in text
    macs = found["per_gpu"]["fwd_macs"]["mean"] / 1e6
    assert f"forward MACs       {macs:.2f} M" in text
    assert f"{found['model']['fwd_macs'] / 1e6:.2f} M" in text
    assert f"step {brief(found['step']['time_ns'])}" in text
    assert found["uncounted_ops"] == [] and "ops that distprof does not know moved 0.0 % of all bytes" in text
    assert f"slowest rank {found['slowest_rank']['rank']}" in text
    assert f"Next: distprof comms {tp}" in text


def test_merging_writes_the_summary_that_stats_prints(tp):
    assert json.loads((tp / "merged" / "summary.json").read_text()) == summary(tp)
