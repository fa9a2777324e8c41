"""The findings alone: for people, scripts and notebooks, and short whatever the run."""

from __future__ import annotations

import json

import pytest

import distprof
from distprof.merge.text.findings import LONGEST, MOST, findings_data
from support.jobs import called

MOST_CHARACTERS = 16_000
"""Some 4,000 tokens."""


@pytest.mark.core
def test_a_late_rank_comes_with_its_evidence(two_late_ranks):
    found = json.loads(called("findings", "--json", two_late_ranks).stdout)
    late = [one for one in found["findings"] if "cause" in one]
    planted = late[:2]  # others may really be late on a busy machine, by less
    assert {one["rank"] for one in planted} == {1, 2} and all(one["p_value"] <= 0.01 for one in late)
    assert {one["cause"]["kind"] for one in planted} == {"forward", "data"}
    report = json.loads(called("report", "--json", two_late_ranks).stdout)
    assert [one["text"] for one in found["findings"]] == [one["text"] for one in report["findings"]][:MOST]
    said = called("findings", two_late_ranks).stdout
    assert all(one["text"] in said and one["next"] in said for one in late)
    frame = distprof.read_run(two_late_ranks).findings()
    assert frame["text"].to_list() == [one["text"] for one in found["findings"]]
    assert frame.drop_nulls("cause")["rank"].to_list() == [one["rank"] for one in late]
    page = distprof.read_run(two_late_ranks)._repr_html_()
    assert page.count("<li>") == len(frame) and "Rank 2 delays" in page


def test_it_stays_short_whatever_there_is_to_say():
    """Names of a thousand characters, hundreds of findings and steps."""
    long = "x" * 1000
    line = {"file": f"/{'d/' * 40}train.py", "line": 7, "function": "step", "spent_ns": 1.0, "of_peers_ns": 0.0}
    cause = {"kind": "forward", "where": "layers.0." * 20, "spent": 1.0, "of_peers": 0.5, "line": line}
    culprits = [{"rank": rank, "certain": True, "gain_ns": 1.0, "gain_error_ns": 0.1, "step_ns": 9.0, "p_value": 1e-4,
                 "late_steps": list(range(1000)), "causes": [cause]} for rank in range(50)]
    findings = [{"severity": "bad", "text": long, "detail": long, "rank": rank, "step": 3, "module": "layers.0",
                 "next": "distprof comms run", "section": "blame"} for rank in range(50)]
    found = findings_data({
        "blame": {"culprits": culprits}, "findings": findings, "run": {"title": long}, "world_size": 4096,
        "missing_ranks": list(range(4000)), "step": {"time_ns": 1.0, "low_ns": 1.0, "high_ns": 2.0}, "steps": None})
    assert len(json.dumps(found, indent=1)) <= MOST_CHARACTERS and found["num_more"] == 50 - MOST
    assert all(len(one["text"]) == LONGEST for one in found["findings"])
