"""`distprof run`: torchrun's flags, the script's own, exit codes and output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from distprof.contract.paths import STUCK_JSON
from distprof.launch import worker
from support.jobs import EXAMPLES, SCRIPTS, called, clean_environ, distprof


def started(tmp_path: Path, *arguments: object, **kwargs) -> dict:
    done = distprof("run", "--out", tmp_path / "run", *arguments, cwd=SCRIPTS, **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.job
def test_the_script_gets_its_own_flags_untouched(tmp_path):
    own = ["--out", "mine", "--steps=7", "--nproc-per-node", "9", "-m", "--", "--tp", "x y"]
    seen = started(tmp_path, "--nproc_per_node", 1, SCRIPTS / "arguments.py", *own)
    assert seen["argv"] == [str(SCRIPTS / "arguments.py"), *own]
    assert seen["name"] == "__main__" and seen["main"]
    assert seen["path0"] == str(SCRIPTS)


def test_both_spellings_of_every_flag_of_torchrun_are_there():
    text = called("run", "--help").stdout
    for dashes in ("--nproc-per-node", "--rdzv-backend", "--max-restarts", "--node-rank"):
        assert dashes in text and dashes[:2] + dashes[2:].replace("-", "_") in text
    assert "--out DIR" in text


@pytest.mark.job
def test_a_module_is_run_with_m(tmp_path):
    seen = started(tmp_path, "--nproc-per-node=1", "-m", "arguments", "--flag")
    assert seen["argv"] == [str(SCRIPTS / "arguments.py"), "--flag"]
    assert seen["path0"] == str(SCRIPTS)


@pytest.mark.job
def test_flags_come_from_the_environment_and_two_dashes_end_them(tmp_path):
    seen = started(tmp_path, "--", "arguments.py", "--steps", "1", PET_NPROC_PER_NODE="1", PET_NNODES="1")
    assert seen["world"] == "1" and seen["argv"] == ["arguments.py", "--steps", "1"]
    assert seen["file"] == str(SCRIPTS / "arguments.py"), "absolute, as Python makes it"
    assert seen["annotation"] == "<class 'int'>"


@pytest.mark.job
def test_stdout_is_the_script_s_alone_and_stderr_has_its_lines(tmp_path):
    ours = distprof("run", "--out", tmp_path / "run", "--nproc-per-node", 2, SCRIPTS / "job.py", "fine")
    lines = ours.stdout.splitlines()
    assert sorted(line for line in lines if "to stdout" in line) == ["rank 0 to stdout", "rank 1 to stdout"]
    assert len(lines) == 2 or "[Gloo]" in ours.stdout  # some versions of gloo greet there
    assert "distprof" not in ours.stdout
    added = [line for line in ours.stderr.splitlines() if "to stderr" not in line]
    assert all(line.startswith(("distprof: ", "    distprof merge ")) for line in added), added
    assert not (tmp_path / "run" / "merged").exists(), "--no-merge"
    assert sum("to stderr" in line for line in ours.stderr.splitlines()) == 2


@pytest.mark.job
@pytest.mark.parametrize(("how", "code"), [
    ("raises", 1), *(pytest.param(*case, marks=pytest.mark.stress) for case in (("killed", 137), ("exits-3", 3)))])
def test_a_failing_rank_gives_its_code_and_keeps_what_was_recorded(tmp_path, how, code):
    out = tmp_path / "run"
    done = distprof("run", "--out", out, "--nproc-per-node", 2, "--steps", "wait=0,count=1,time=1,trace=9",
                    SCRIPTS / "job.py", how)
    assert done.returncode == code, done.stderr
    assert "rank 1 failed first" in done.stderr
    assert not (out / "rank00001" / STUCK_JSON).exists(), "an error of the script itself is no hang"
    if how == "raises":
        assert "ValueError: the data is bad" in done.stderr
        assert "launch/worker.py" not in done.stderr and "runpy" not in done.stderr
    assert json.loads((out / "run.json").read_text())["exit_code"] == code
    told = distprof("merge", out)
    assert told.returncode == 0, told.stderr
    assert "rank 1" in told.stdout and "incomplete" in told.stdout
    assert distprof("merge", "--force", "--strict", out).returncode == 3
    summary = json.loads(distprof("stats", "--json", out).stdout)
    assert summary["ranks"] == [0, 1]
    # the count pass was flushed before rank 1 died
    assert summary["per_gpu"]["fwd_macs"]["mean"] == 3 * (8 * 16 + 16 * 4)


def test_a_script_that_is_not_there_is_one_line_and_2(tmp_path):
    done = called("run", "--out", tmp_path / "run", "nowhere.py")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["distprof: no script nowhere.py  hint: use -m to run a module"]
    assert not (tmp_path / "run").exists()


def test_no_python_is_refused_with_the_way_out():
    done = called("run", "--no-python", "ls")
    assert done.returncode == 2 and "distprof.record" in done.stderr


def test_force_does_not_delete_what_is_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    done = called("run", "--force", "--out", tmp_path, SCRIPTS / "arguments.py")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.job
def test_a_directory_in_use_needs_force_which_replaces_the_run_and_leaves_other_files(tmp_path, alone):
    out = Path(shutil.copytree(alone, tmp_path / "run"))
    refused = called("run", "--out", out, SCRIPTS / "arguments.py")
    assert refused.returncode == 1 and "--force" in refused.stderr and len(refused.stderr.splitlines()) == 1
    (out / "rank00009").mkdir()
    (out / "notes.txt").write_text("mine")
    assert distprof("run", "--force", "--out", out, SCRIPTS / "arguments.py").returncode == 0
    assert (out / "notes.txt").read_text() == "mine" and not (out / "rank00009").exists()


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = called("run", "--out", tmp_path / "file" / "run", SCRIPTS / "arguments.py")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(("flags", "words"), [
    (("--steps", "wiat=1"), "did you mean 'wait'?"),
    (("--steps", "wait=x"), "needs a number of steps"),
    (("--steps", "count=0,time=0,trace=0"), "nothing to record"),
    (("--tp", "3", "--nproc-per-node", "4"), "must divide 4 ranks, but tp 3"),
    (("--tp", "0"), "at least 1"),
    (("--nproc-per-node", "some"), "does not accept --nnodes 1:1 --nproc-per-node some"),
    (("--nnodes", "1:2:3"), "does not accept --nnodes 1:2:3"),
    (("--max-restarts", "x"), "invalid int value: 'x'"),
])
def test_wrong_flags_are_one_line_and_2(tmp_path, flags, words):
    done = called("run", "--out", tmp_path / "run", *flags, SCRIPTS / "arguments.py")
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_script_is_one_line_and_2():
    done = called("run", "--nproc-per-node", 2)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "training_script" in done.stderr and "distprof run --help" in done.stderr


@pytest.mark.job
def test_a_model_that_never_steps_is_told_and_what_was_seen_is_kept(tmp_path):
    out = tmp_path / "run"
    done = distprof("run", "--out", out, "--nproc-per-node", 2, SCRIPTS / "job.py", "never-steps")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "no step was recorded" in line]
    assert len(told) == 2 and "found 13 forward calls and no optimizer.step()" in told[0] and "rec.step()" in told[0]
    merged = distprof("merge", out)
    assert merged.returncode == 0 and "no step was found" in merged.stdout
    assert json.loads(distprof("stats", "--json", out).stdout)["per_gpu"]["params"]["mean"] == 8 * 16 + 16 + 16 * 4 + 4


@pytest.mark.job
def test_a_script_without_torch_runs_and_one_line_says_that_nothing_was_recorded(tmp_path):
    (tmp_path / "plain.py").write_text("print('no torch here')\n")
    done = distprof("run", "--out", tmp_path / "run", tmp_path / "plain.py")
    assert done.returncode == 0 and done.stdout == "no torch here\n"
    assert "distprof: nothing was recorded: the script did not import torch" in done.stderr


@pytest.mark.job
@pytest.mark.parametrize("first", [
    "from distprof import record",
    pytest.param("from distprof.counting.count import count", marks=pytest.mark.stress),
    pytest.param("import distprof.compat.fvcore", marks=pytest.mark.stress)])
def test_a_script_that_imports_us_before_torch_is_recorded(tmp_path, first):
    (tmp_path / "train.py").write_text(
        f"{first}\nimport torch\nmodel = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n")
    plan = {"DISTPROF_OUT": str(tmp_path / "run"), "DISTPROF_STEPS": "wait=1,count=1,time=1,trace=1,arrivals=0"}
    done = subprocess.run([sys.executable, worker.__file__, tmp_path / "train.py"], capture_output=True, text=True,
                          check=False, env=clean_environ() | plan)
    about = json.loads((tmp_path / "run" / "rank00000" / "rank.json").read_text())
    assert (done.returncode, done.stderr, about["status"]) == (0, "", "complete")


@pytest.mark.job
def test_recording_can_be_disabled(tmp_path):
    done = distprof("run", "--out", tmp_path / "run", SCRIPTS / "job.py", "fine", DISTPROF_DISABLE="1")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "run").glob("rank*"))


@pytest.fixture
def environment_as_before(monkeypatch):
    """`run` in this process sets variables for its ranks."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.parametrize(("code", "ends", "how"), [
    (-9, 137, "signal 9"), (-15, 143, "signal 15"), (3, 3, "exit code 3"), (1, 1, "exit code 1")])
def test_the_job_ends_with_the_code_of_the_rank_that_failed_first(tmp_path, monkeypatch, environment_as_before, code,
                                                                  ends, how):
    """For a signal as shells have it."""
    def fail(_):
        raise ChildFailedError("arguments.py", {1: ProcessFailure(local_rank=1, pid=7, exitcode=code,
                                                                  error_file="<N/A>")})

    monkeypatch.setattr("torch.distributed.run.run", fail)
    done = called("run", "--out", tmp_path / "run", "--nproc-per-node", 2, SCRIPTS / "arguments.py")
    assert done.returncode == ends and f"distprof: rank 1 failed first: {how}\n" in done.stderr
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (about["exit_code"], about["failed_rank"], about["failed_with"]) == (ends, 1, code)


def test_a_torchrun_that_cannot_run_is_one_line_and_the_run_is_closed(tmp_path, monkeypatch, environment_as_before):
    def refuse(_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("torch.distributed.run.run", refuse)
    done = called("run", "--out", tmp_path / "run", SCRIPTS / "arguments.py")
    assert done.returncode == 1, "as without distprof"
    said = [line for line in done.stderr.splitlines() if "torchrun could not run the job" in line]
    assert len(said) == 1 and "No usable temporary directory" in said[0] and "hint: " in said[0]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_code"] == 1


def test_a_report_that_fails_leaves_the_exit_code_to_the_script(tmp_path, monkeypatch, environment_as_before):
    def fail(*_):
        raise ZeroDivisionError("in the report")

    monkeypatch.setattr("torch.distributed.run.run", lambda _: None)
    monkeypatch.setattr("distprof.launch.commands.run._write_report", fail)
    (tmp_path / "ds.json").write_text('{"flops_profiler": {"enabled": true}}')
    done = called("run", "--out", tmp_path / "run", "--config", tmp_path / "ds.json", SCRIPTS / "arguments.py")
    assert done.returncode == 0 and "distprof: no report: in the report" in done.stderr


@pytest.mark.job
def test_an_argument_that_is_no_utf_8_reaches_the_script(tmp_path):
    name = b"na\xffme".decode(errors="surrogateescape")
    assert started(tmp_path, SCRIPTS / "arguments.py", name)["argv"][1:] == [name]


def test_unmodified_examples_do_not_know_us():
    for path in EXAMPLES.glob("*.py"):
        assert "distprof" not in path.read_text()
