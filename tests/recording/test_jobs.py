"""Jobs of other shapes: pipelines, scripts that record themselves, several hosts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from distprof import count
from support import forked
from support.jobs import PATIENCE_S, ROOT, SCRIPTS, clean_environ, distprof, merged, record_run, torchrun, wait_for

SHORT = ("--steps", "wait=1,count=1,time=1,trace=1")


def files(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}


pytestmark = pytest.mark.job


@pytest.fixture(scope="module")
def pipeline(recordings) -> Path:
    def record(out: Path) -> None:
        record_run(out, 2, SCRIPTS / "pipeline.py", flags=(*SHORT, "--pp", 2))
        merged(out)

    return recordings.get("pipeline", record)


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


def test_sizes_that_are_given_are_in_the_files_of_each_rank(pipeline):
    """A merge takes them from run.json; who reads the files of a rank alone has them there."""
    for rank in (0, 1):
        folder = pipeline / f"rank{rank:05d}"
        info = json.loads((folder / "rank.json").read_text())
        assert (info["topology"], info["coordinates"]) == ({"pp": 2, "dp": 1}, {"pp": rank, "dp": 0})
        assert (info["mp_size"], info["dp_size"], info["topology_basis"]) == (2, 1, "given")
        steps = pl.read_parquet(folder / "steps.parquet").select("rank", "mp_size", "dp_size").unique()
        assert steps.rows() == [(rank, 2, 1)]


def test_sends_and_receives_of_a_pipeline_are_shown(pipeline):
    rows = pl.read_parquet(pipeline / "merged" / "collectives.parquet")
    assert rows.sort("rank", "enqueue_ns").select("rank", "op", "peer", "size_bytes").rows() == [
        (0, "send", 1, 120), (0, "recv", 1, 120), (1, "recv", 0, 120), (1, "send", 0, 120)]


def test_a_script_that_records_itself_leaves_the_same_files(tmp_path, pipeline):
    out = tmp_path / "run"
    torchrun(2, SCRIPTS / "recorded_by_hand.py", out)
    assert files(merged(out)) == files(pipeline)
    summary = json.loads((out / "merged" / "summary.json").read_text())
    assert summary["problems"] == [] and summary["topology"] == {"dp": 2}
    for rank in (0, 1):
        assert json.loads((out / f"rank{rank:05d}" / "rank.json").read_text())["num_steps"] == 4
    again = torchrun(1, SCRIPTS / "recorded_by_hand.py", out)
    assert "force" in again.stderr, "a directory in use is no reason to stop training"


@pytest.mark.stress
def test_ranks_that_learn_who_they_are_later_leave_the_same_files(tmp_path, pipeline):
    out = tmp_path / "run"
    done = forked.run([sys.executable, SCRIPTS / "spawned.py", out], capture_output=True, text=True,
                      env=clean_environ(), timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert files(merged(out)) == files(pipeline)
    assert json.loads((out / "merged" / "summary.json").read_text())["problems"] == []


@pytest.mark.parametrize("flags", [(), pytest.param(("--tp", 2), marks=pytest.mark.stress)])
def test_a_mesh_without_names_is_tensor_parallel_where_parameters_are_sharded(tmp_path, flags):
    out = tmp_path / "run"
    record_run(out, 2, SCRIPTS / "unnamed_mesh.py", flags=("--steps", "wait=1,count=1,time=1,trace=0", *flags))
    summary = json.loads(distprof("stats", "--json", out).stdout)
    assert summary["mp_size"] == 2 and summary["dp_size"] == 1
    assert summary["per_gpu"]["params"]["mean"] == 8 * 16
    assert summary["model"]["params"] == summary["model"]["unique_params"] == 2 * 8 * 16
    assert summary["model"]["fwd_macs"] == 4 * 2 * 8 * 16


@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.stress)])
def test_a_job_that_is_told_to_end_keeps_its_timeline(tmp_path, number, code):
    out, mark = tmp_path / "run", tmp_path / "mark"
    job = forked.popen(
        [sys.executable, "-m", "distprof", "run", "--out", out, "--steps", "wait=1,count=1,time=0,trace=99",
         SCRIPTS / "terminated.py", mark], env=clean_environ(), stderr=subprocess.PIPE, text=True)
    wait_for(job, mark)
    job.send_signal(number)
    _, told = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == code, told
    assert not (out / "merged").exists() and f"    distprof merge {out}\n    distprof comms {out}\n" in told, told
    info = json.loads((out / "rank00000" / "rank.json").read_text())
    assert info["status"] == "partial" and "trace.json.gz" in info["files"], info
    assert json.loads(distprof("stats", "--json", merged(out)).stdout)["per_gpu"]["fwd_macs"]["mean"] == 32


def test_two_jobs_of_one_second_get_a_directory_each(tmp_path):
    jobs = [forked.popen([sys.executable, "-m", "distprof", "run", SCRIPTS / "arguments.py"], cwd=tmp_path,
                         env=clean_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    told = [job.communicate(timeout=PATIENCE_S)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_ranks_of_several_hosts_are_said_to_be_unaligned(tmp_path, pipeline):
    run = Path(shutil.copytree(pipeline, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    path = run / "rank00001" / "rank.json"
    info = json.loads(path.read_text()) | {"host": "other", "boot_id": "another"}
    path.write_text(json.dumps(info))
    assert "2 clocks on 2 hosts aligned within" in distprof("merge", run).stdout, "the ranks compared them"
    assert "--align none" in distprof("merge", "--force", "--align", "none", run).stdout
    shutil.rmtree(run / "merged")
    path.write_text(json.dumps(info | {"clock_sync": []}))
    told = distprof("merge", run).stdout
    assert "clocks are not aligned" in told
    assert "clocks are not aligned" in distprof("comms", run).stdout
    clock = json.loads((run / "merged" / "summary.json").read_text())["clock"]
    assert clock["aligned"] is False and clock["num_hosts"] == 2 and clock["uncertainty_ns"] is None


def test_a_clock_that_was_set_is_said(tmp_path, pipeline):
    run = Path(shutil.copytree(pipeline, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    path = run / "rank00000" / "rank.json"
    info = json.loads(path.read_text())
    info["clock"][-1]["realtime_ns"] += 2_000_000_000
    path.write_text(json.dumps(info))
    assert "the wall clock was adjusted by up to 2.00 s" in distprof("stats", run).stdout


def test_the_page_of_the_run_directory_is_made_from_the_contract():
    page = forked.run([sys.executable, "-c", "import run_directory; print(run_directory.page(), end='')"],
                      capture_output=True, text=True, cwd=ROOT / "docs", check=True).stdout
    assert (ROOT / "docs" / "run-directory.md").read_text() == page


def test_an_fsdp2_job_counts_what_the_model_counts_alone(sharded, monkeypatch):
    found = json.loads(distprof("stats", "--json", sharded).stdout)
    monkeypatch.syspath_prepend(ROOT / "examples")
    from train_ddp import Transformer

    model = Transformer(vocabulary=50, width=32, heads=4, depth=2, length=16)
    counts = count(model, torch.zeros(3, 16, dtype=torch.long), backward=True).to_dict()["modules"]
    alone = {row["module_path"]: row for row in counts}
    per_gpu = {quantity: spread["mean"] for quantity, spread in found["per_gpu"].items() if spread is not None}
    assert found["topology"] == {"dp": 2} and found["mp_size"] == 1
    assert per_gpu["params"] == found["model"]["params"] == alone[""]["params"]
    assert per_gpu["stored_params"] < 0.6 * alone[""]["params"], "a rank stores half, and padding"
    assert (per_gpu["fwd_flops"], per_gpu["bwd_flops"]) == (alone[""]["fwd_flops"], alone[""]["bwd_flops"])
    # a block runs again but for its last product, whose result backward does not need
    again = alone["layers.1"]["fwd_flops"] - alone["layers.1.mlp.2"]["fwd_flops"]
    assert per_gpu["recompute_flops"] == again > 0
    modules = json.loads(distprof("stats", "--modules", "--json", sharded).stdout)["modules"]
    assert {row["module_path"] for row in modules} == set(alone), "wrappers are no modules of their own"
    assert found["uncounted_ops"] == []
