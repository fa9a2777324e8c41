"""Where `distprof report` writes, what it replaces, and what it refuses."""

from __future__ import annotations

import json
import shutil

import pytest

from distprof.contract import rank_json
from distprof.contract.paths import RUN_JSON
from distprof.contract.run_json import RunJson
from distprof.recording.run_directory import make_run_directory
from support.jobs import called
from support.rank_traces import slice_of, write_run
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, programs


@pytest.fixture
def run(tmp_path):
    return Recorder().write(Simulation(programs(SHAPES["ddp"], 2, 4, 1), lanes=1), tmp_path / "run")


def written(*arguments):
    done = called("report", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.rstrip("\n")


@pytest.mark.long
def test_the_page_goes_into_the_run_or_its_merge(run):
    assert written(run) == f"{run}/report.html"
    page = (run / "report.html").read_text()
    assert "Rank" in page or "rank" in page
    (run / "report.html").unlink()
    assert called("merge", run).returncode == 0
    assert written(run) == f"{run}/merged/report.html"
    assert written(run / "merged") == f"{run}/merged/report.html", "an earlier page is replaced"
    assert called("merge", "--force", run).returncode == 0
    assert not (run / "merged" / "report.html").exists(), "a page of an earlier merge is out of date"


def test_the_page_of_traces_of_another_program_goes_where_one_is(tmp_path, monkeypatch):
    write_run(tmp_path / "run", [slice_of("aten::mm", 1, 5, cat="cpu_op")])
    traces = tmp_path / "traces"
    traces.mkdir()
    shutil.move(tmp_path / "run" / "rank00000" / "trace.json.gz", traces / "rank0.json.gz")
    monkeypatch.chdir(tmp_path)
    assert written(traces) == "report.html"
    assert (tmp_path / "report.html").is_file() and len(list(traces.iterdir())) == 1


@pytest.mark.long
def test_what_is_no_page_of_ours_is_replaced_only_where_asked(run, tmp_path):
    (run / "report.html").write_text("mine")
    assert called("report", run).returncode == 1 and (run / "report.html").read_text() == "mine"
    place = tmp_path / "new" / "page.html"
    assert written(run, "--out", place) == str(place)
    place.write_text("mine")
    done = called("report", run, "--out", place)
    assert done.returncode == 1 and "--force" in done.stderr and place.read_text() == "mine"
    written(run, "--out", place, "--force")
    assert place.read_text() != "mine" and [path.name for path in place.parent.iterdir()] == ["page.html"]


def test_a_place_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = called("report", run, "--out", tmp_path / "file" / "page.html")
    assert done.returncode == 1 and "cannot write" in done.stderr and "hint" in done.stderr


@pytest.mark.parametrize("more", [("--out", "x.html"), ("--force",)])
def test_text_has_no_place(run, more):
    done = called("report", "--json", *more, run)
    assert done.returncode == 2 and "--json cannot be combined" in done.stderr


@pytest.mark.parametrize("flag", ["--peak", "--bandwidth"])
def test_rates_are_positive(run, flag):
    done = called("report", "--json", flag, -1, run)
    assert done.returncode == 2 and flag in done.stderr


def test_a_lone_merge_is_refused(run, tmp_path):
    assert called("merge", run, "--out", tmp_path / "merge").returncode == 0
    shutil.move(tmp_path / "merge", tmp_path / "elsewhere")
    done = called("report", tmp_path / "elsewhere")
    assert done.returncode == 1 and "pass the run directory" in done.stderr


@pytest.mark.long
def test_a_fresh_merge_changes_no_number(run):
    before = json.loads(written("--json", run))
    assert called("merge", run).returncode == 0
    assert json.loads(written("--json", run)) == before


@pytest.mark.long
def test_a_new_recording_takes_the_old_page_away(run):
    rank_json.write(run / RUN_JSON, RunJson(run_id="simulated"))
    written(run)
    make_run_directory(run, RunJson(run_id="new"), force=True)
    assert [path.name for path in run.iterdir()] == [RUN_JSON]
