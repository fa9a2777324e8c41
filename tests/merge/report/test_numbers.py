"""The numbers of a report are those that the other commands print of the same run."""

from __future__ import annotations

import json
from functools import cache

import pytest

from distprof.merge.report.section import rows_of
from support.jobs import SCRIPTS, called, record_run
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

SYNC = SCRIPTS / "synchronises.py"


@pytest.fixture(scope="module", autouse=True)
def _forgotten():
    """What was printed are millions of objects, which later tests would look through."""
    yield
    printed.cache_clear()


@cache
def printed(command, *arguments):
    """Nobody changes it."""
    done = called(command, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A late rank, without counts and times of modules."""
    job = programs(SHAPES["ddp"], 4, 9, 1, plants=(Plant(2, "forward", ns=40_000_000),), jitter=0.01)
    return Recorder().write(Simulation(job, lanes=1), tmp_path_factory.mktemp("simulated") / "run")


@pytest.fixture(scope="module")
def with_memory(recordings):
    """Two ranks with allocations, and lines that wait."""
    return recordings.get("report", lambda out: record_run(
        out, 2, SYNC, flags=("--steps", "wait=1,count=1,time=1,sync=2,trace=2,memory=1,arrivals=0")))


@pytest.fixture(params=["simulated", *(pytest.param(name, marks=pytest.mark.job) for name in (
    "ddp", "tp", "two_late_ranks", "with_memory"))])
def run(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def document(run):
    return printed("report", run)


@pytest.mark.long
def test_totals_and_step_are_those_of_stats(run, document):
    stats = printed("stats", run)
    for name in ("world_size", "mp_size", "dp_size", "topology", "topology_source", "topology_certain", "ranks",
                 "missing_ranks"):
        assert document[name] == stats[name]
    assert document["step"].items() >= stats["step"].items()
    assert document["totals"] == {name: stats[name] for name in document["totals"]}
    assert document["communication"] == {name: stats["communication"][name] for name in document["communication"]}
    assert document["pipeline"] == stats["communication"]["pipeline"]


def test_communication_is_that_of_comms(run, document):
    comms = printed("comms", run)
    assert document["collective_kinds"] == comms["kinds"]
    assert document["bandwidths"] == comms["bandwidths"]
    assert [{name: one[name] for name in comms["culprits"][0]} for one in document["blame"]["culprits"]] \
        == comms["culprits"]
    assert {**document["clock"], "ranks": rows_of(document["clock"]["ranks"])}.items() >= {
        **comms["clock"], "ranks": [{**one, "host": mine["host"]} for one, mine in zip(
            map(without_reference, comms["clock"]["ranks"]), rows_of(document["clock"]["ranks"]), strict=True)]}.items()


def without_reference(rank):
    return {name: value for name, value in rank.items() if name != "reference_ns"}


def test_parts_of_steps_are_those_of_comms(run, document):
    comms = printed("comms", run)
    assert document["step_parts"]["source"] == "trace"
    parts, measured = rows_of(document["step_parts"]["by_rank"]), comms["breakdown"]
    scale = document["step"]["time_ns"] / (sum(row["duration_ns"] for row in measured) / len(measured))
    assert parts == [{name: pytest.approx(value * scale) if name.endswith("_ns") else value
                      for name, value in row.items()} for row in measured]
    cells = {(row["rank"], row["step"]): row for row in rows_of(document["heat_map"]["by"])}
    assert comms["breakdown_by_step"]
    for row in comms["breakdown_by_step"]:
        cell = cells[row["rank"], row["step"]]
        assert all(cell[name] == row[name] for name in ("duration_ns", "waiting_ns", "compute_ns"))
        assert cell["counted"]


def test_each_call_came_when_comms_says(run, document):
    comms = {one["collective"]: one for one in printed("comms", run)["collectives"]}
    found = document["collectives"]
    shown = [(step, call, rows_of(step["calls"])[call]) for step in found["steps"]
             for call in range(len(step["calls"]["collective"]))]
    assert {call["collective"] for _, _, call in shown} == set(comms)
    for step, place, call in shown:
        one = comms[call["collective"]]
        assert (step["step"], found["ops"][call["op"]], call["size_bytes"]) == (
            one["step"], one["op"], one["size_bytes"])
        assert call["late_rank"] == one["late_rank"] and call["unsure"] == one["unsure"]
        parts = [part for part in rows_of(step["parts"]) if part["call"] == place]
        assert [(part["rank"], part["arrival_ns"] + step["start_ns"]) for part in parts] == [
            (of["rank"], of["arrival_ns"]) for of in one["of_ranks"]]
        assert [None if part["full_ns"] is None else part["full_ns"] - part["arrival_ns"] for part in parts] == [
            of["wait_ns"] for of in one["of_ranks"]]
        assert [None if part["end_ns"] is None else part["end_ns"] + step["start_ns"] for part in parts] == [
            of["end_ns"] for of in one["of_ranks"]]


def test_the_longest_chain_is_that_of_critical_path(run, document):
    path, mine = printed("critical-path", "--top", 30, run), document["critical_path"]
    assert (mine["duration_ns"], mine["by_kind"]) == (path["duration_ns"], path["by_kind"])
    for name in ("by_rank", "by_module", "by_op", "by_collective"):
        assert rows_of(mine[name]) == path[name]


def test_operators_are_those_of_ops(run, document):
    if document["operators"] is None:
        assert "no timeline" in document["absent"]["operators"]
        return
    flags = [word for one in document["operators"]["by"] for word in ("--by", one)]
    ops = printed("ops", *flags, "--top", 300, run)
    columns = document["operators"]["columns"]
    assert [dict(zip(columns, row, strict=True)) for row in document["operators"]["rows"]] == [
        {name: row[name] for name in columns} for row in ops["ops"]]
    assert (document["operators"]["totals"], document["operators"]["coverage"]) == (ops["totals"], ops["coverage"])


def test_waits_are_those_of_waits(run, document):
    if document["waits"] is None:
        assert "sync=2" in document["absent"]["waits"]
        return
    waits = printed("waits", run)
    assert document["waits"]["source"] == waits["source"]
    assert rows_of(document["waits"]["rows"]) == [row for row in waits["waits"] if row["blocked_ns"]][:50]
    assert document["waits"]["compilations"]["totals"] == waits["compilations"]["totals"]


def test_modules_are_those_of_stats(run, document):
    if document["modules"] is None or document["totals"]["coverage_ratio"] is None:
        assert document["modules"] is not None or "module" in document["absent"]["modules"]
        return
    stats = {(one["stage"], one["module_path"]): one for one in printed("stats", "--modules", run)["modules"]}
    rows = rows_of(document["modules"]["tree"])
    assert {(row["stage"], row["path"]) for row in rows} == set(stats)
    for row in rows:
        one = stats[row["stage"], row["path"]]
        for name in ("params", "fwd_flops", "bwd_flops", "fwd_time_ns", "bwd_time_ns", "bwd_self_time_ns"):
            assert row[name] == one[f"{name}_mean"]
        above = row["parent"]
        assert (above == -1) == (row["depth"] == 0)
        assert above == -1 or rows[above]["depth"] < row["depth"]
        assert above == -1 or row["path"].startswith(rows[above]["path"])
    for times in document["modules"]["of_ranks"].values():
        assert len(times["fwd_time_ns"]) == len(rows)


def test_memory_is_that_of_memory(with_memory):
    document, memory = printed("report", with_memory), printed("memory", "--top", 50, with_memory)
    names = ("rank", "device", "time_ns", "peak_bytes", "before_bytes", "unknown_bytes", "reserved_bytes")
    mine = document["memory"]
    assert [{name: row[name] for name in names} for row in rows_of(mine["ranks"])] == [
        {name: peak[name] for name in names} for peak in memory["peaks"]]
    assert rows_of(mine["groups"]) == memory["groups"]
    largest = sorted((one["size_bytes"] for peak in memory["peaks"] for one in peak["tensors"]), reverse=True)[:50]
    assert mine["at_peak"]["bytes"] == largest
    for row in rows_of(mine["ranks"]):
        curve = mine["timeline"][str(row["rank"])]
        assert max(curve["bytes"]) == row["peak_bytes"]
        assert curve["bytes"][curve["time_ns"].index(max(t for t in curve["time_ns"] if t <= curve["at_peak_ns"]))]
