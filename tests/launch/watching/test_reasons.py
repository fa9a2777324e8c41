"""Findings are explained while the job runs."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import pytest

from distprof.contract.watch_state import WatchFinding
from distprof.launch.watching.explanations import Explanations
from distprof.launch.watching.machine import MachineSample
from distprof.launch.watching.reasons import ConditionsFile, Reasons
from distprof.merge.watch.machines import MOST_MOMENTS
from support.made_up_states import job_state, slow_rank

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")


def test_what_another_host_wrote_explains_a_finding(tmp_path):
    now_ns = time.time_ns()
    file = ConditionsFile(tmp_path / "hosts" / "b-2", "b")
    for second in range(400):
        file.add(MachineSample(time_ns=now_ns - (400 - second) * 10**9, others="",
                               values={"psi_memory": 0.41 if second >= 340 else 0.0}))
    file.write()
    reasons = Reasons(tmp_path, "a", "a-1", lambda: {0: os.getpid()})
    finding = WatchFinding(id="1", kind="slow_rank", ranks=[1], hosts=["b"], onset_step=5, onset_ns=now_ns - 60 * 10**9)
    hosts = {0: "a", 1: "b"}
    assert reasons.explain([finding], hosts) == {"1": ["b: tasks wait for memory 41 % of the time"]}
    assert reasons.explain([finding], hosts) == {}  # not due
    over = WatchFinding(id="2", kind="slow_rank", ranks=[1], onset_step=5, onset_ns=now_ns - 60 * 10**9, until_step=9)
    assert reasons.explain([over], hosts) == {}
    assert reasons.notes == []


@pytest.mark.job
def test_this_machine_is_read_and_kept(tmp_path):
    reasons = Reasons(tmp_path, "a", "a-1", lambda: {0: os.getpid()})
    reasons.start()
    time.sleep(1.3)
    reasons.stop()
    finding = WatchFinding(id="1", kind="regression", onset_step=5, onset_ns=time.time_ns())
    assert reasons.explain([finding], {0: "a"}) == {"1": []}
    assert reasons._conditions.hosts["a"].count >= 2
    assert list((tmp_path / "hosts" / "a-1").iterdir())


def test_while_another_launcher_explains_findings_few_readings_are_kept(tmp_path):
    reasons = Reasons(tmp_path, "a", "a-1", dict)
    for second in range(MOST_MOMENTS + 100):
        reasons._watch._told(MachineSample(time_ns=second * 10**9, values={}, others=""))
    assert len(reasons._told) == MOST_MOMENTS


def test_a_reason_that_no_longer_holds_is_taken_back(tmp_path):
    finding = slow_rank(1, why=["its own"])
    state, now = job_state(findings=[finding]), dict[str, list[str]]()
    explanations = Explanations(tmp_path, 0)
    explanations._reasons = SimpleNamespace(notes=[], add_links=lambda _: None, explain=lambda *_: now)
    found = []
    for now in ({finding.id: ["busy 30 %"]}, {}, {finding.id: ["busy 40 %"]}, {finding.id: []}):  # noqa: B007
        explanations._add_reasons(state)
        found.append(list(finding.why))
    assert found == [["its own", "busy 30 %"], ["its own", "busy 30 %"], ["its own", "busy 40 %"], ["its own"]]
