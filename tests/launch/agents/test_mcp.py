"""`distprof mcp`, asked by the official client as a coding agent would."""

from __future__ import annotations

import json
import shutil

import pytest

from distprof.contract.watch_state import write_state
from distprof.launch.agents.bounded import MOST_BYTES
from distprof.launch.agents.run_answers import RunAnswers
from support.jobs import called
from support.made_up_states import job_state, rank_state, slow_rank
from support.planted_runs import recorded
from support.simulator.plant import Plant
from support.watched_jobs.job import MS
from support.watched_ranks import MadeUpRank, make_run

pytest.importorskip("mcp")
from support.coding_agent import ask, tools

pytestmark = pytest.mark.job
NAMES = ("findings", "steps", "comms", "ops", "watch_state")


def test_an_agent_is_told_what_each_tool_is_for(tmp_path):
    found = tools(make_run(tmp_path / "run"))
    assert tuple(found) == NAMES
    for tool in found.values():
        assert len(tool.description) > 200 and tool.annotations.read_only_hint
        assert all(one.get("description") for one in tool.input_schema["properties"].values())


def test_every_answer_is_bounded_and_pages_go_on(tmp_path):
    run = recorded(tmp_path / "run", Plant(5, "optimizer", None, 20 * MS))
    ranks = [rank_state(rank) for rank in range(512)]
    found = [slow_rank(rank, id=f"{rank}", why=["x" * 500] * 9) for rank in range(512)]
    write_state(run, job_state(running=False, ranks=ranks, findings=found))
    answers = ask(run, [
        *((name, {}) for name in NAMES if name != "ops"), ("findings", {"offset": 512}),
        ("steps", {"each_step": True, "rank": 5}), ("comms", {"collective": 3}), ("watch_state", {"rank": 7}),
        ("watch_state", {"offset": 500})])
    for one in answers:
        assert not one.is_error, one.text
        assert len(one.text.encode()) <= MOST_BYTES
    first, steps, comms, state, last, each, collective, seven, tail = (one.content for one in answers)
    assert first["left_out"]["rows"]["next_offset"] == len(first["findings"]) < 512
    assert last["left_out"]["rows"]["from"] == 512 and {
        one["source"] for one in last["findings"]} == {"recorded steps"}
    assert {row["rank"] for row in each["steps_of_ranks"]} == {5} and len(steps["mean_step_of_ranks"]) == 8
    assert len(collective["of_ranks"]) == 8 and comms["culprits"][0]["rank"] == 5
    assert [row["rank"] for row in seven["ranks"]] == [7] and seven["ranks"][0]["recent_ns"]
    assert state["num_ranks"] == 512 and len(tail["ranks"]) == 12


def test_operators_of_a_module_on_a_rank(shown_demo):
    every, some = ask(shown_demo / "runs" / "demo", [
        ("ops", {}), ("ops", {"by": ["module", "phase"], "module": "layers.1.*", "rank": 2})])
    assert len(every.text.encode()) <= MOST_BYTES and every.content["num_ops"] > len(every.content["ops"]) > 3
    assert {row["module"].startswith("layers.1.") for row in some.content["ops"]} == {True}
    assert {row["rank"] for row in some.content["ops"]} == {2}


def test_errors_say_what_to_do(tmp_path):
    answers = ask(recorded(tmp_path / "run"), [
        ("comms", {"op": "nope"}), ("ops", {"sort": "nope"}), ("steps", {"rank": 99}), ("findings", {"window": 4}),
        ("comms", {"collective": 10**6}), ("watch_state", {}), ("ops", {"rank": 99}), ("findings", {"offset": -1})])
    assert all(one.is_error for one in answers)
    assert all("hint: " in one.text or "choose from" in one.text for one in answers[:-1])
    assert "greater than or equal to 0" in answers[-1].text


def test_a_job_that_goes_on_is_told_by_its_watch(tmp_path):
    run = make_run(tmp_path / "run")
    for rank in (MadeUpRank(run, rank) for rank in range(4)):
        rank.steps(300)
    findings, state, steps = ask(run, [("findings", {}), ("watch_state", {}), ("steps", {})])
    assert state.content["num_steps"] == 300 and len(state.content["ranks"]) == 4
    assert "no step was recorded in detail yet" in findings.content["recorded_steps_unknown"]
    assert findings.content["findings"] == [] and findings.content["whole_job"] == "steps 0-299"
    assert steps.is_error and "hint: watch_state" in steps.text


def test_ranks_of_the_watch_are_the_late_ones_then_those_that_wait_least_then_those_that_do_not_tell(tmp_path):
    run = make_run(tmp_path / "run")
    ratios = (None, 0.4, 0.0, 0.2, None)
    ranks = [rank_state(rank, waiting_ratio=ratio) for rank, ratio in enumerate(ratios)]
    write_state(run, job_state(ranks=ranks, findings=[slow_rank(1)]))
    answered = json.loads(RunAnswers(run).watch_state(rank=None, offset=0))
    assert [row["rank"] for row in answered["ranks"]] == [1, 2, 3, 0, 4]


def test_a_later_recording_is_read_as_a_window(tmp_path):
    run = make_run(tmp_path / "run")
    write_state(run, job_state())
    recorded(run / "windows" / "0001", Plant(5, "optimizer", None, 20 * MS))
    every, later, comms = ask(run, [("findings", {}), ("findings", {"window": 1}), ("comms", {"window": 1})])
    assert every.content["windows"] == [1] and every.content["findings"][0]["source"] == "whole job"
    assert later.content["findings"][0]["ranks"] == [5] and comms.content["culprits"][0]["rank"] == 5


def test_a_run_that_is_removed_meanwhile_is_an_error(tmp_path):
    run = make_run(tmp_path / "run")
    write_state(run, job_state())
    assert not ask(run, [("watch_state", {})])[0].is_error
    shutil.rmtree(run)
    done = called("mcp", run)
    assert done.returncode == 1 and "is not a run directory  hint: " in done.stderr and done.stdout == ""
