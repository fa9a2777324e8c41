"""Jobs of other shapes: pipelines, scripts that record themselves, several hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT, SCRIPTS, clean_environ, distprof, merged, record_run

SHORT = ("--steps", "wait=1,count=1,time=1,trace=1")


def files(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pp") / "run"
    record_run(out, 2, SCRIPTS / "pipeline.py", flags=(*SHORT, "--pp", 2))
    return merged(out)


def test_uneven_pipeline_stages_add_up_to_the_model(pipeline):
    summary = json.loads(distprof("stats", "--json", pipeline).stdout)
    assert summary["topology"] == {"pp": 2, "dp": 1} and summary["mp_size"] == 2
    params = (6 * 10 + 10, 10 * 4 + 4 + 4 * 2 + 2)
    macs = (3 * 60, 3 * (40 + 8))
    assert summary["model"]["params"] == summary["model"]["unique_params"] == sum(params)
    assert summary["model"]["fwd_macs"] == sum(macs)
    spread = summary["per_gpu"]["fwd_macs"]
    assert spread == {"mean": sum(macs) / 2, "min": macs[1], "max": macs[0], "min_rank": 1, "max_rank": 0}
    # the two stages have the same module paths and are no replicas of each other
    modules = pl.read_parquet(pipeline / "merged" / "modules.parquet")
    roots = modules.filter(pl.col("module_path") == "").sort("stage")
    assert roots["model_params"].to_list() == list(params)
    assert "stage 1: (root)" in distprof("stats", pipeline).stdout


def test_sends_and_receives_of_a_pipeline_are_shown(pipeline):
    rows = pl.read_parquet(pipeline / "merged" / "collectives.parquet")
    assert rows.sort("rank", "enqueue_ns").select("rank", "op", "peer", "size_bytes").rows() == [
        (0, "send", 1, 120), (0, "recv", 1, 120), (1, "recv", 0, 120), (1, "send", 0, 120)]


def test_a_script_that_records_itself_leaves_the_same_files(tmp_path, pipeline):
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         SCRIPTS / "recorded_by_hand.py", out], capture_output=True, text=True, env=clean_environ(), timeout=240,
        check=False)
    assert done.returncode == 0, done.stderr
    assert files(merged(out)) == files(pipeline)
    summary = json.loads((out / "merged" / "summary.json").read_text())
    assert summary["problems"] == [] and summary["topology"] == {"dp": 2}
    for rank in (0, 1):
        assert json.loads((out / f"rank{rank:05d}" / "rank.json").read_text())["num_steps"] == 4
    again = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         SCRIPTS / "recorded_by_hand.py", out], capture_output=True, text=True, env=clean_environ(), timeout=240,
        check=False)
    assert again.returncode == 0, "a directory in use is no reason to stop training"
    assert "--force" in again.stderr or "force" in again.stderr


def test_ranks_that_learn_who_they_are_later_leave_the_same_files(tmp_path, pipeline):
    out = tmp_path / "run"
    done = subprocess.run([sys.executable, SCRIPTS / "spawned.py", out], capture_output=True, text=True,
                          env=clean_environ(), timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert files(merged(out)) == files(pipeline)
    assert json.loads((out / "merged" / "summary.json").read_text())["problems"] == []


def test_ranks_of_several_hosts_are_said_to_be_unaligned(tmp_path, pipeline):
    run = Path(shutil.copytree(pipeline, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    path = run / "rank00001" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "other", "boot_id": "another"}))
    told = distprof("merge", run).stdout
    assert "clocks are not aligned" in told
    clock = json.loads((run / "merged" / "summary.json").read_text())["clock"]
    assert clock["aligned"] is False and clock["num_hosts"] == 2 and clock["uncertainty_ns"] is None


def test_a_clock_that_was_set_is_said(tmp_path, pipeline):
    run = Path(shutil.copytree(pipeline, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    path = run / "rank00000" / "rank.json"
    info = json.loads(path.read_text())
    info["clock"][-1]["realtime_ns"] += 2_000_000_000
    path.write_text(json.dumps(info))
    assert "the wall clock was set by up to 2000." in distprof("stats", run).stdout


def test_the_page_of_the_run_directory_is_made_from_the_contract():
    page = subprocess.run([sys.executable, "-c", "import run_directory; print(run_directory.page(), end='')"],
                          capture_output=True, text=True, cwd=ROOT / "docs", check=True).stdout
    assert (ROOT / "docs" / "run-directory.md").read_text() == page
