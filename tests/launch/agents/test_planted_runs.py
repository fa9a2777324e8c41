"""Runs with a known fault are explained right by a script that follows what `distprof mcp` says its fields mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hanging_jobs import STOP, HangingJob
from support.planted_runs import RUNS, Truth

pytest.importorskip("mcp")
from support.coding_agent import Explained, explain_run, started

pytestmark = pytest.mark.job
USUAL = ("data that become late", "a slow link", "a rank that was looked at closer", "nothing")
"""Those that are asked about in `make test`."""


def is_right(found: Explained | None, truth: Truth | None) -> bool:
    """All that was planted is known where it can be, and nothing is said that is wrong."""
    if found is None or truth is None:
        return found is truth
    since = truth.since_step is None or (
        found.since_step is not None and abs(found.since_step - truth.since_step) <= truth.within)
    phase = found.phase == truth.phase or (found.phase is None and truth.phase_may_be_unknown)
    hosts = truth.hosts is None or found.hosts == truth.hosts
    return (found.kind, found.ranks, found.module) == (truth.kind, truth.ranks, truth.module) and (
        since and phase and hosts)


def test_the_demo_is_explained_down_to_the_line(shown_demo):
    found = explain_run(shown_demo / "runs" / "demo", started)
    assert found is not None and (found.kind, found.ranks, found.phase, found.module) == (
        "slow_rank", (2,), "forward", "layers.1.mlp")
    assert found.line is not None and found.line.startswith("demo.py:")


@pytest.mark.core
@pytest.mark.parametrize("name", [
    name if name in USUAL else pytest.param(name, marks=pytest.mark.stress) for name in RUNS])
def test_planted_runs_are_explained(tmp_path: Path, name: str) -> None:
    make, truth = RUNS[name]
    make(tmp_path / "run")
    found = explain_run(tmp_path / "run")
    print(name, found)
    assert is_right(found, truth), (found, truth)


@pytest.mark.stress
def test_a_job_that_hangs_is_explained_while_it_does(tmp_path):
    job = HangingJob(tmp_path, "lock", 2)
    try:
        assert job.listen().finding is not None, job.said
        found = explain_run(job.out, started)
    finally:
        job.over()
    assert is_right(found, Truth(kind="hang", ranks=(1,), since_step=STOP, within=0)), found
    assert found is not None and found.line is not None and found.line.startswith("stands_still.py:")
