"""`distprof selftest` on CPUs: all claims hold, and each kind of planted fault is a row that does not."""

from __future__ import annotations

import json
import tempfile
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distprof.launch.selftest import recording, selftest
from distprof.launch.selftest.evidence import Claim, Evidence, Planted, planted_in, rows
from distprof.launch.selftest.host_claims import SAID, late
from distprof.launch.selftest.recording import Recorded, recorded
from distprof.launch.selftest.selftest import jobs_here
from support import forked
from support.jobs import called, distprof
from support.shown_demo import OTHERS

pytestmark = pytest.mark.job


class Kept(NamedTuple):
    """What the command said, and the run that it kept."""

    document: dict[str, Any]
    said: str
    folder: Path
    read: Evidence
    """Keeps what was read once."""

    def evidence(self, planted: list[Planted] | None = None) -> Evidence:
        """Of the run; what was planted may be said to be something else."""
        found = copy(self.read)
        Evidence.__init__(found, self.folder / "host", planted or self.read.planted)
        return found


TRIES = 3
"""What a busy machine does to the times of one recording, it rarely does to three."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Kept:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recording, "Popen", forked.popen)
        for name, value in OTHERS.items():
            patched.setenv(name, value)
        for _ in range(TRIES):
            folder = tmp_path_factory.mktemp("selftest") / "kept"
            done = called("selftest", "--cpu", "--json", "--keep", folder)
            if done.returncode == 0:
                break
    assert done.returncode == 0, done.stdout + done.stderr
    read = Evidence(folder / "host", planted_in(folder / "host-planted"))
    assert failing(read) == []
    return Kept(json.loads(done.stdout), done.stderr, folder, read)


def failing(evidence: Evidence, claims: tuple[Claim, ...] = SAID) -> list[str]:
    return [row.claim for row in rows("job", claims, evidence) if not row.holds]


def test_every_claim_holds_whatever_another_job_left_in_the_shell(kept):
    document = kept.document
    assert document["holds"] is True and document["not_tested"] == ["GPUs: left out by --cpu"]
    assert document["took_s"] < 60
    assert [row["claim"] for row in document["rows"]] == ["recorded and merged", *(claim.text for claim in SAID)]
    assert {"distprof", "torch", "python", "cards", "driver", "cuda", "backends"} <= set(document["machine"])
    assert kept.said == "distprof: recording 2 ranks on CPUs, gloo\n"


@pytest.mark.parametrize(("fact", "factor", "claims"), [
    ("rows", 2, ["FLOPs of a product in forward", "FLOPs of a product in backward", "FLOPs of a step"]),
    ("copy_bytes", 2, ["bytes read and written by a copy"]),
    ("reduces", 2, ["all_reduce"]), ("reduced_bytes", 2, ["all_reduce"]), ("sent_bytes", 3, ["broadcast"])])
def test_a_wrong_count_or_size_is_found(kept, fact, factor, claims):
    planted = [replace(one, facts=one.facts | {fact: one.facts[fact] * factor})
               for one in planted_in(kept.folder / "host-planted")]
    assert failing(kept.evidence(planted)) == claims


@pytest.mark.parametrize(("part", "claims"), [
    ("forward", ["sleep in forward: module slow_forward", "line of the sleep in forward"]),
    ("backward", ["sleep in backward: module slow_backward", "line of the sleep in backward"]),
    ("loader", ["sleep in the data loader", "sleeps before forward", "line of the sleep in the data loader"]),
    ("between", ["sleeps before forward", "line of the sleep between steps"]), ("late", ["how late it is"]),
    ("step", ["step time"])])
def test_a_time_that_is_not_what_was_planted_is_found(kept, part, claims):
    planted = [replace(one, steps=[step | {part: step[part] * 3} if part in step else step for step in one.steps])
               for one in planted_in(kept.folder / "host-planted")]
    assert [claim for claim in failing(kept.evidence(planted)) if not claim.startswith("the rest")] == claims


@pytest.mark.parametrize(("name", "claim"), [
    ("time", "the rest of a step with timers"), ("trace", "the rest of a step with a timeline")])
def test_a_pass_that_costs_too_much_is_found(kept, name, claim):
    slow = set(kept.evidence().steps_of(name))
    planted = [replace(one, steps=[step | {"step": step["step"] + 200e6 * (number in slow)}
                                   for number, step in enumerate(one.steps)])
               for one in planted_in(kept.folder / "host-planted")]
    assert [found for found in failing(kept.evidence(planted)) if found != "step time"] == [claim]


def test_another_rank_or_line_is_found(kept):
    evidence = kept.evidence()
    claims = (Claim(text="late", judge=late),)
    assert failing(evidence, claims) == []
    evidence.late_rank = 0
    assert failing(evidence, claims) == ["late"]
    evidence = kept.evidence()
    evidence.line_of = lambda mark: ("host.py", 1)
    assert failing(evidence) == [claim.text for claim in SAID if claim.text.startswith(("line", "late"))]


def test_a_claim_that_cannot_be_judged_is_a_row_with_the_reason(kept):
    def judge(_: Evidence) -> Any:
        raise ValueError("nothing\nto see")

    row, = rows("job", (Claim(text="impossible", judge=judge),), kept.evidence())
    assert (row.claim, row.found, row.holds) == ("impossible", "ValueError: nothing", False)
    planted = [replace(one, failed={"graph": "RuntimeError: no graphs"})
               for one in planted_in(kept.folder / "host-planted")]
    row, = rows("job", (Claim(text="graph", judge=judge, part="graph"),), kept.evidence(planted))
    assert row.found == "the job could not do it: rank 0, RuntimeError: no graphs" and not row.holds


def test_a_claim_that_does_not_hold_is_shown_and_ends_with_1(kept, monkeypatch, tmp_path):
    planted = [replace(one, facts=one.facts | {"rows": 1}) for one in planted_in(kept.folder / "host-planted")]

    def recorded_before(job: recording.Job, folder: Path) -> Recorded:
        assert folder.parent == tmp_path and folder.is_dir()
        return Recorded(evidence=kept.evidence(planted), took_s=1.0,
                        row=selftest.Row(job=job.name, claim="recorded", expected="", found="", holds=True))

    monkeypatch.setattr(selftest, "recorded", recorded_before)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = called("selftest", "--cpu")
    assert done.returncode == 1
    shown = [line.split() for line in done.stdout.splitlines()]
    assert [words[:5] for words in shown if words and words[-1] == "NO"] == [
        ["FLOPs", "of", "a", "product", "in"], ["FLOPs", "of", "a", "product", "in"],
        ["FLOPs", "of", "a", "step", "61,440"]]
    assert "not tested: GPUs: left out by --cpu" in done.stdout
    assert done.stdout.endswith("3 of 22 claims do not hold. Please report this with the output of "
                                "`distprof selftest --json`.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "why"), [
    ("raise ValueError('no such thing')", "exit code 1: ValueError: no such thing"),
    ("import torch", "0 of 2 ranks ended"),
    ("import time; time.sleep(600)", "did not end within 3 s: ")])
def test_a_job_that_fails_is_a_row_with_the_reason(monkeypatch, tmp_path, text, why):
    monkeypatch.setattr(recording, "Popen", forked.popen)
    monkeypatch.setattr(recording, "PATIENCE_S", 3 if "sleep" in text else 120)
    (tmp_path / "bad.py").write_text(text)
    job = replace(jobs_here(0, on_cpu=False, has_nccl=False)[0][0], script=tmp_path / "bad.py")
    done = recorded(job, tmp_path / "runs")
    assert done.row.found.startswith(why) and not done.row.holds and done.evidence is None


def test_what_is_in_the_folder_to_keep_is_not_touched(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for keep, said in ((tmp_path, f"{tmp_path} is not empty"), (tmp_path / "mine", "cannot make"),
                       ("s3://bucket/a", "--keep must be a local folder")):
        done = called("selftest", "--cpu", "--keep", keep)
        assert done.returncode in (1, 2) and done.stderr.startswith(f"distprof: {said}") and not done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.stress
def test_every_claim_holds_five_times_where_processes_start():
    for _ in range(5):
        done = distprof("selftest", "--cpu", real=True)
        assert done.returncode == 0, done.stdout + done.stderr
