"""Clocks of traces of other programs, estimated from when their collectives ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.merge.clock.by_collectives import synchronising
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.match.matched_run import match_run
from distprof.merge.run.open_run import open_run
from support.jobs import distprof

EPOCH_US = 1_700_000_000_000_000
OFFSETS_NS = {0: 0, 1: 0, 2: 3_000_000_000, 3: 3_000_000_000}
"""How far the clocks of the two hosts are ahead."""


def kernel(number: int, rank: int, how: str) -> dict:
    """An all_reduce that ends everywhere within a microsecond; each rank enters at a time of its own."""
    end_us = EPOCH_US + number * 1000 + (number * 7 + rank * 3) % 10 / 10
    start_us = EPOCH_US + number * 1000 - 200 - (number * 37 + rank * 91) % 100
    shift_us = OFFSETS_NS[rank] // 1000
    args = {"id": {"Comms Id": 2**63 + number * 17}, "sequence": {"Process Group Name": "0", "Seq": number}}.get(
        how, {})
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args)", "pid": 0, "tid": 20,
            "ts": round(start_us + shift_us, 3), "dur": round(end_us - start_us, 3), "args": args}


def write(folder: Path, how: str, *, number: int = 40, lacks_first: int | None = None) -> Path:
    folder.mkdir()
    for rank in OFFSETS_NS:
        events = [kernel(index, rank, how) for index in range(number) if index or rank != lacks_first]
        (folder / f"rank{rank}_trace.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": 4, "backend": "nccl"}, "host_name": f"host{rank // 2}",
            "traceEvents": events}))
    return folder


@pytest.mark.parametrize("how", ["id", "sequence", "order"])
def test_two_hosts_are_brought_together_by_what_they_did_together(tmp_path, how):
    clock = measured_run(open_run(write(tmp_path / "traces", how))).clock
    assert clock.method == "collectives" and clock.aligned
    for rank, offset_ns in OFFSETS_NS.items():
        error = abs(clock.line(rank).shift(EPOCH_US * 1000 + offset_ns) - EPOCH_US * 1000)
        assert error <= 1000 and error <= clock.ranks[rank].uncertainty_ns
    assert clock.check.violations == 0
    done = distprof("merge", tmp_path / "traces")
    assert done.returncode == 0 and "2 clocks on 2 hosts aligned within" in done.stdout
    about = json.loads((tmp_path / "traces" / "merged" / "summary.json").read_text())["clock"]
    assert about["method"] == "collectives" and about["residual_ns"]["max"] <= 2000


@pytest.mark.parametrize("how", ["id", "sequence"])
def test_a_rank_that_lacks_the_first_one_shifts_nothing(tmp_path, how):
    clock = measured_run(open_run(write(tmp_path / "traces", how, lacks_first=2))).clock
    assert clock.aligned and clock.check.violations == 0


def test_by_order_only_where_all_have_equally_many(tmp_path):
    assert len(synchronising(match_run(open_run(write(tmp_path / "traces", "order", lacks_first=2))).rows)) == 0
    assert len(synchronising(match_run(open_run(write(tmp_path / "equal", "order"))).rows)) == 4 * 40


def test_too_few_are_said(tmp_path):
    done = distprof("merge", "--strict", write(tmp_path / "traces", "id", number=2))
    assert done.returncode == 3 and "not aligned" in done.stderr


def test_nothing_is_shifted_where_that_is_asked_for(tmp_path):
    done = distprof("merge", "--align", "none", write(tmp_path / "traces", "id"))
    assert done.returncode == 0 and "not aligned" in done.stdout
