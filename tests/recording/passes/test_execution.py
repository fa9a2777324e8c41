"""The execution pass: what torch's observer saw, with times and communication, in real jobs."""

from __future__ import annotations

import gzip
import json
import re
import shutil

import polars as pl
import pytest

from support.chakra_tools import has_chakra, jsonized
from support.execution_replay import longest_chain_us, replayed_us, span_us
from support.execution_traces import read_et
from support.jobs import EXAMPLES, SCRIPTS, called, distprof

pytestmark = pytest.mark.job
ONE_STEP = "wait=1,count=0,time=0,execution=1,trace=0,arrivals=0"
COMMUNICATION = (5, 6, 7)
JOBS = {
    "FSDP2": (2, SCRIPTS / "sharded.py"), "tp2 x dp2": (4, SCRIPTS / "named_mesh.py"),
    "pipeline by hand": (2, SCRIPTS / "pipeline.py"), "sequence parallel": (2, SCRIPTS / "sequence_parallel.py"),
    "accumulation and subgroups": (4, SCRIPTS / "accumulating.py", "accumulate"),
    "isend": (2, SCRIPTS / "accumulating.py", "send"),
}


def record(folder, nproc, script, *arguments, steps=ONE_STEP):
    done = distprof("run", "--out", folder, "--steps", steps, "--nproc-per-node", nproc, script, *arguments)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    """A job under DDP with the passes that others are compared with."""
    return record(tmp_path_factory.mktemp("ddp") / "run", 2, SCRIPTS / "job.py", "plain", 9,
                  steps="wait=1,count=1,time=0,execution=1,trace=2,arrivals=0")


@pytest.fixture
def damaged(ddp, tmp_path):
    """A copy without other timelines, for a test to take from it what it likes."""
    return shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("trace.json.gz"))


def recorded_nodes(run, rank):
    """Nodes as torch wrote them."""
    return json.loads(gzip.decompress((run / f"rank{rank:05d}" / "execution_trace.json.gz").read_bytes()))["nodes"]


def exported(run, folder):
    done = called("export", run, "--out", folder, "--prefix", "job")
    assert done.returncode == 0, done.stderr
    return done.stdout


def can_be_replayed(ranks):
    for nodes, replayed in zip(ranks, replayed_us(ranks), strict=True):
        rounded = len(nodes)  # each node takes whole microseconds, and one at least
        assert longest_chain_us(nodes) <= span_us(nodes) + rounded
        assert abs(replayed - span_us(nodes)) <= 0.03 * span_us(nodes) + rounded


@pytest.mark.stress
@pytest.mark.parametrize("kind", JOBS)
def test_graphs_of_timelines_alone_can_be_replayed_too(tmp_path, kind):
    run = record(tmp_path / "run", *JOBS[kind], steps="wait=1,count=0,time=0,trace=2,arrivals=0")
    said = exported(run, tmp_path / "et")
    ranks = [read_et(tmp_path / "et" / f"job.{rank}.et")[1] for rank in range(JOBS[kind][0])]
    can_be_replayed(ranks)
    step = int(re.search(r"step (\d+)", said).group(1))
    predicted = json.loads(called("whatif", "--free-communication", "--step", step, "--json", run).stdout)
    wanted = max(one["predicted_ns"] / 1000 for one in predicted["steps"][0]["by_rank"])
    # a thread that has nothing to wait for does not have to wake up, which takes long where processors are busy
    woke_us = max(sum(node["duration"] for node in nodes if "wait" in node["name"].lower()) for nodes in ranks)
    assert max(replayed_us(ranks, free=True)) == pytest.approx(wanted, abs=0.05 * wanted + woke_us + len(ranks[0]))


@pytest.mark.parametrize("kind", [
    "DDP", *[*JOBS][:2], *(pytest.param(kind, marks=pytest.mark.stress) for kind in [*JOBS][2:])])
def test_communication_is_what_torch_issued_and_agrees_on_all_ranks(request, tmp_path, kind):
    run = record(tmp_path / "run", *JOBS[kind]) if kind in JOBS else request.getfixturevalue("ddp")
    exported(run, tmp_path / "et")
    by_collective, ranks = {}, []
    for rank in range(len(list(run.glob("rank*")))):
        _, nodes = read_et(tmp_path / "et" / f"job.{rank}.et")
        ranks.append(nodes)
        communication = [node for node in nodes if node["type"] in COMMUNICATION]
        issued = [node for node in recorded_nodes(run, rank) if node["name"].startswith("c10d::")]
        assert len(communication) == len(issued) > 0
        if rank == 0 and has_chakra():
            assert len(jsonized(tmp_path / "et" / f"job.{rank}.et")) == len(nodes)
        known = {node["id"] for node in nodes}
        assert all(one in known for node in nodes for one in (*node["data"], *node["control"]))
        assert all(one < node["id"] for node in nodes for one in (*node["data"], *node["control"]))
        assert all(node["duration"] > 0 for node in communication)
        for node in communication:
            if node["type"] == 7:
                attributes = node["attributes"]
                by_collective.setdefault(attributes["pg_name"], {}).setdefault(rank, []).append(
                    (attributes["comm_type"], attributes["comm_size"]))
    for of_ranks in by_collective.values():  # of a group that is part of the world, its other ranks have another number
        assert all(one == next(iter(of_ranks.values())) for one in of_ranks.values())
    can_be_replayed(ranks)


def test_nearly_all_calls_have_their_slice(ddp, tmp_path):
    said = exported(ddp, tmp_path / "et")
    assert said.count("100.0 %") == 2
    steps = pl.read_parquet(ddp / "rank00000" / "steps.parquet").filter(pl.col("pass") == "execution")
    start, end = steps.select("start_ns", "end_ns").row(0)
    _, nodes = read_et(tmp_path / "et" / "job.0.et")
    at = [node["start"] for node in nodes if node["start"]]
    assert start // 1000 - 50_000 <= min(at) and max(at) <= end // 1000 + 50_000


def test_work_of_the_nodes_adds_up_to_what_was_counted(ddp, tmp_path):
    exported(ddp, tmp_path / "et")
    counted = pl.read_parquet(ddp / "rank00000" / "ops.parquet")["flops"].sum()
    _, nodes = read_et(tmp_path / "et" / "job.0.et")
    assert sum(node["attributes"].get("num_ops", 0) for node in nodes) == counted > 0


def test_its_communication_is_not_among_what_is_judged(ddp):
    step = pl.read_parquet(ddp / "rank00000" / "steps.parquet").filter(pl.col("pass") == "execution")["step"].to_list()
    comms = json.loads(called("comms", ddp, "--json").stdout)
    assert not {one["step"] for one in comms["collectives"]} & set(step)
    assert set(pl.read_parquet(ddp / "rank00000" / "execution_collectives.parquet")["step"]) == set(step)


def test_without_the_pass_the_timeline_alone_is_exported(tmp_path):
    run = record(tmp_path / "run", 2, SCRIPTS / "job.py", "plain", 5,
                 steps="wait=1,count=0,time=0,trace=2,arrivals=0")
    said = exported(run, tmp_path / "et")
    assert "no execution traces" in said and "--execution-trace" in said
    _, nodes = read_et(tmp_path / "et" / "job.0.et")
    comms = json.loads(called("comms", run, "--json").stdout)["collectives"]
    last = max(one["step"] for one in comms)
    assert len([node for node in nodes if node["type"] in COMMUNICATION]) == len(
        [one for one in comms if one["step"] == last])


def test_a_killed_rank_leaves_a_file_that_can_be_read(damaged, tmp_path):
    folder = damaged / "rank00001"
    text = gzip.decompress((folder / "execution_trace.json.gz").read_bytes())
    (folder / "execution_trace.json.gz").unlink()
    (folder / "execution_timeline.json.gz").unlink()
    (folder / "execution_trace.json").write_bytes(text[:len(text) // 2])
    said = exported(damaged, tmp_path / "et")
    assert "cut off on rank 1" in said and "no timeline has calls from the execution trace of rank 1" in said
    assert len(read_et(tmp_path / "et" / "job.1.et")[1]) > 10


def test_a_job_that_ends_in_the_pass_is_recorded_without_it(tmp_path):
    done = distprof("run", "--out", tmp_path / "run", "--execution-trace", "--nproc-per-node", 1,
                    EXAMPLES / "train_ddp.py", "--steps", "6")
    assert done.returncode == 0 and (tmp_path / "run" / "rank00000").is_dir(), done.stderr
    assert not list((tmp_path / "run").glob("*/execution*"))


OBSERVED = """
import sys
import torch
def observe():
    own = torch.profiler.ExecutionTraceObserver().register_callback(sys.argv[1])
    own.start()
    return own
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    if step == int(sys.argv[2]):
        own = observe()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
own.stop()
own.unregister_callback()
"""


@pytest.mark.parametrize("begins", [0, 1, 2, 3])
def test_an_observer_of_the_script_goes_first(tmp_path, begins):
    """It begins before the pass, in its step, or behind it; a process cannot have two."""
    script, own = tmp_path / "observed.py", tmp_path / "own.json"
    script.write_text(OBSERVED)
    done = distprof("run", "--out", tmp_path / "run", "--steps", ONE_STEP, "--nproc-per-node", 1, script, own, begins)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(own.read_text())["nodes"]) > 20
    has_ours = (tmp_path / "run" / "rank00000" / "execution_trace.json.gz").exists()
    assert has_ours == (begins > 1) == ("records its own execution trace" not in done.stderr)


def test_a_thread_that_the_timeline_does_not_show_communicates_in_its_own_group(tmp_path):
    run = record(tmp_path / "run", 2, SCRIPTS / "communicating_thread.py")
    said = exported(run, tmp_path / "out")
    ranks = [read_et(tmp_path / "out" / f"job.{rank}.et")[1] for rank in (0, 1)]
    calls = [{node["name"]: node["attributes"]["pg_name"] for node in nodes if "comm_type" in node["attributes"]}
             for nodes in ranks]
    assert calls == 2 * [{"gloo:broadcast": "0", "gloo:all_reduce": "1"}]
    assert "2 calls of communication have no time" in said and "skipped" not in said


def test_communication_without_a_slice_is_exported_and_a_rank_without_the_pass_is_said(damaged, tmp_path):
    for file in (damaged / "rank00001").glob("execution_t*"):
        file.unlink()
    timeline = damaged / "rank00000" / "execution_timeline.json.gz"
    trace = json.loads(gzip.decompress(timeline.read_bytes()))
    trace["traceEvents"] = [one for one in trace["traceEvents"] if not one["name"].startswith("gloo:")]
    timeline.write_bytes(gzip.compress(json.dumps(trace).encode()))
    said = exported(damaged, tmp_path / "et")
    assert "neither an execution trace nor a timeline: 1" in said
    issued = pl.read_parquet(damaged / "rank00000" / "execution_collectives.parquet")
    _, nodes = read_et(tmp_path / "et" / "job.0.et")
    found = [node for node in nodes if node["type"] in COMMUNICATION]
    assert [node["name"] for node in found] == issued["op"].to_list() != [] and "does not show their work" not in said
