"""What goes wrong while recording is one line with a hint; the script goes on, and what could be written stays."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import distprof
from distprof import files
from distprof.errors import OutputError
from distprof.process import identity
from distprof.recording.hang.report import HangReport
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing import timeline
from support import forked
from support.jobs import PATIENCE_S, called, clean_environ
from support.processes import files_no_larger_than
from support.recording import Recorded, train

STEPS = "wait=0,count=1,time=1,trace=1"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def steps_of(model: nn.Module, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()


def test_a_run_that_is_removed_while_recording_is_one_line_with_a_hint(tmp_path, capfd):
    run = tmp_path / "run"
    with distprof.record(run, steps=STEPS):
        steps_of(nn.Linear(4, 4), 1)
        shutil.rmtree(run)
        steps_of(nn.Linear(4, 4), 3)
    assert capfd.readouterr().err == (
        f"distprof: rank 0: recording stopped, training continues: cannot write to {run / 'rank00000.partial'}: No "
        "such file or directory  hint: was the folder removed in the meantime?\n")
    assert not run.exists(), "what the user removed stays removed"


def said(capfd) -> list[str]:
    """Our lines on stderr; Kineto has lines of its own where a test before this one asked it to log."""
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("distprof: ")]


def test_a_timeline_that_finds_no_room_costs_nothing_but_itself(tmp_path, monkeypatch, capfd):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("distprof.helper.HEAVY", "sys")  # so that timelines are written in this process
    monkeypatch.setattr(timeline.igzip, "compress", full)
    with distprof.record(tmp_path / "run", steps=STEPS):
        steps_of(nn.Linear(4, 4), 4)
    (told,) = said(capfd)
    assert "No space left on device  hint: free some space there" in told
    folder = tmp_path / "run" / "rank00000.partial"
    assert {path.name for path in folder.iterdir()} == {
        "rank.json", "modules.parquet", "parameters.parquet", "ops.parquet", "steps.parquet", "collectives.parquet",
        "lines.parquet"}


def test_a_folder_that_is_gone_when_the_timeline_is_written_is_one_line(tmp_path, capfd):
    run = tmp_path / "run"
    with distprof.record(run, steps="wait=0,count=0,time=0,trace=2"):
        steps_of(nn.Linear(4, 4), 1)
        (run / "rank00000.partial" / "steps.ndjson").unlink()
        (run / "rank00000.partial" / "rank.json").unlink()
        (run / "rank00000.partial").rmdir()
    (told,) = said(capfd)
    assert "was the folder removed in the meantime?" in told


def test_steps_that_are_lost_behind_the_last_pass_that_is_needed_are_named(tmp_path, monkeypatch):
    """The rank is complete by its rank.json, and the disk is full when it comes to the arrivals pass."""
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with distprof.record(tmp_path / "run", steps=f"{STEPS},arrivals=3"):
        steps_of(nn.Linear(4, 4), 3)
        monkeypatch.setattr(RankFolder, "add_step", full)
        monkeypatch.setattr(RankFolder, "write_rank", full)
        steps_of(nn.Linear(4, 4), 3)
    told = called("stats", tmp_path / "run").stdout
    assert "rank 0 did not finish recording" in told and "3 steps recorded" in told


def test_a_failure_of_another_thread_does_not_swallow_the_signal_that_came_meanwhile(tmp_path, monkeypatch):
    """The main thread of some programs waits while another one trains."""
    came: list[int] = []

    def interrupted(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        written.wait(1)
        raise OSError(errno.EIO, "bad")

    written = threading.Event()
    monkeypatch.setattr(RankFolder, "add_step", interrupted)
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with distprof.record(tmp_path / "run", steps="wait=0,count=0,time=2,trace=0"):
            training = threading.Thread(target=steps_of, args=(nn.Linear(4, 4), 2))
            training.start()
            training.join()
            assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


AMID = """
import os, signal, sys, time
import torch
import distprof
from distprof.counting.known_calls import KnownCalls

calls, look_up = [], KnownCalls.call

def interrupted(*args):
    calls.append(args)
    if len(calls) == 30:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # the signal is noticed in here
    return look_up(*args)

KnownCalls.call = interrupted
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with distprof.record(sys.argv[1], steps="wait=0,count=9999,time=0,trace=0"):
    while True:
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.005)
"""


@pytest.mark.job
def test_a_signal_in_the_midst_of_an_operator_keeps_what_was_counted(tmp_path):
    """The counter cannot be taken away while torch asks it about an operator."""
    done = forked.run([sys.executable, "-c", AMID, tmp_path / "run"], capture_output=True, text=True, check=False,
                      env=clean_environ())
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")
    found = Recorded(tmp_path / "run")
    assert found.info["why"].startswith("signal SIGTERM after") and found.modules()[""]["fwd_flops"] == 2 * 2 * 16


HANGS = """
import sys, time
import torch
import distprof
from distprof.recording import termination
from distprof.recording.run_directory import RankFolder
termination.PATIENCE_S, termination.WRITING_S = 0.2, 0.5
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
RankFolder.add_step = lambda *_: (print("writes", flush=True), time.sleep(600))
with distprof.record(sys.argv[1]):
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.job
def test_a_file_system_that_hangs_does_not_hold_up_the_end_of_the_process(tmp_path):
    with forked.popen([sys.executable, "-c", HANGS, tmp_path / "run"], stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE, text=True, env=clean_environ()) as process:
        assert process.stdout.readline() == "writes\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGTERM
    assert "could not write the recording: a write to the run directory hangs" in told


class Unspeakable(RuntimeError):
    """An exception of a script that cannot be looked at."""

    def __str__(self) -> str:
        raise KeyError("no words")


def test_an_exception_without_words_ends_the_script_as_it_would_have(tmp_path):
    with pytest.raises(Unspeakable), distprof.record(tmp_path / "run", steps="wait=0,count=9,time=0,trace=0"):
        steps_of(nn.Linear(4, 4), 2)
        raise Unspeakable
    found = Recorded(tmp_path / "run").info
    assert found["status"] == "partial"
    assert found["why"].startswith("Unspeakable in the script: without a message: str() raised KeyError")


def test_a_report_that_cannot_be_removed_holds_nobody_up(tmp_path):
    folder = tmp_path / "rank00000"
    folder.mkdir()
    report = HangReport(lambda: folder, dict)
    report._written = True
    folder.rmdir()
    folder.write_text("a file where the folder was")
    report.remove()


@pytest.mark.parametrize("rank", ["", " ", "none"])
def test_an_environment_without_numbers_is_one_without_ranks(tmp_path, monkeypatch, rank):
    for name in ("WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.setenv(name, rank)
    info = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.zeros(2, 4), steps=STEPS).info
    assert (info["rank"], info["world_size"], info["local_rank"], info["attempt"]) == (0, 1, 0, 0)


def test_a_machine_that_hides_what_it_is_has_no_boot_id(tmp_path, monkeypatch):
    hidden = tmp_path / "hidden"
    hidden.mkdir()  # cannot be read like a file, whoever tries
    monkeypatch.setattr(identity, "BOOT_ID", hidden)
    monkeypatch.setattr(identity, "CPUINFO", hidden)
    info = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.zeros(2, 4), steps=STEPS).info
    assert info["boot_id"] == "" and info["device_name"] and info["status"] == "complete"


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_system_without_fsync_is_good_enough_and_one_that_fails_is_not(tmp_path, monkeypatch, number, fails):
    def fsync(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fsync)
    with distprof.record(tmp_path / "run", steps=STEPS):
        steps_of(nn.Linear(4, 4), 4)
    assert Path(tmp_path / "run" / "rank00000").exists() != fails


def test_steps_are_never_written_into_files_of_the_script(tmp_path):
    """It closes all files, ours as well, and opens others under their numbers."""
    folder = RankFolder(tmp_path / "run", 0, run_id="a", force=False, tags=dict)
    folder.add_step({"step": 0})
    number = folder._step_lines
    os.close(number)
    theirs = tmp_path / "theirs"
    assert os.open(theirs, os.O_CREAT | os.O_RDWR) == number
    try:
        folder.add_step({"step": 1})
        folder.close()
        assert os.write(number, b"of the script")
    finally:
        os.close(number)
    assert theirs.read_bytes() == b"of the script"
    assert (folder.path / "steps.ndjson").read_text() == '{"step": 0}\n{"step": 1}\n'


def test_a_step_for_which_there_is_no_room_costs_no_other_step(tmp_path):
    folder = RankFolder(tmp_path / "run", 0, run_id="a", force=False, tags=dict)
    folder.add_step({"step": 0})
    lines = folder.path / "steps.ndjson"
    with files_no_larger_than(lines.stat().st_size + 5), pytest.raises(OutputError, match="File too large"):
        folder.add_step({"step": 1})
    folder.add_step({"step": 2})
    folder.close()
    assert lines.read_text() == '{"step": 0}\n{"step": 2}\n'
