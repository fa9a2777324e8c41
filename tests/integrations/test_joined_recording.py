"""What callbacks share: they begin a recording or join one, end what they began, and never stand in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import distprof
from distprof.errors import UsageError
from distprof.integrations.joined_recording import JoinedRecording
from support import forked
from support.jobs import clean_environ
from support.recording import Recorded

SHORT = "wait=0,count=1,time=0,trace=0,arrivals=0"


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in [name for name in os.environ if name.startswith("DISTPROF_") or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)


def train(model: nn.Module, recording: JoinedRecording, *, evaluate: bool = False) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if evaluate:
        recording.enter_evaluation()
        for _ in range(3):
            model(torch.ones(4, 8)).sum().backward()  # with gradients, in training mode
        recording.leave_evaluation()
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def test_what_is_marked_is_evaluation_whatever_it_looks_like(tmp_path):
    recording = JoinedRecording(tmp_path / "run", steps=SHORT)
    recording.open()
    train(nn.Linear(8, 3), recording, evaluate=True)
    recording.close()
    found = Recorded(tmp_path / "run")
    assert found.info["status"] == "complete"
    assert sum(found.flops("forward").values()) == 2 * 2 * 8 * 3
    assert sum(found.flops("evaluation").values()) == 3 * (2 * 4 * 8 * 3) * 2, "forward, and backward to the weight"


def test_a_recording_that_runs_is_joined_and_goes_on(tmp_path):
    with distprof.record(tmp_path / "run", steps=SHORT) as recorder:
        recording = JoinedRecording(tmp_path / "other")
        for _ in range(2):
            recording.open()
            assert recording.recorder is recorder
            recording.close()
        assert recorder.recording
        train(nn.Linear(8, 3), recording)
    assert not (tmp_path / "other").exists() and Recorded(tmp_path / "run").info["num_steps"] == 1


def test_nothing_is_recorded_where_nothing_says_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recording = JoinedRecording()
    recording.open()
    train(nn.Linear(8, 3), recording, evaluate=True)
    recording.step()
    recording.close()
    assert recording.recorder is None and not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_costs_a_line_and_no_training(tmp_path, capsys):
    (tmp_path / "file").touch()
    recording = JoinedRecording(tmp_path / "file")
    recording.open()
    train(nn.Linear(8, 3), recording)
    recording.close()
    assert "is a file, not a directory" in capsys.readouterr().err


def test_settings_are_checked_where_they_are_given():
    with pytest.raises(UsageError, match="needs a number of steps"):
        JoinedRecording(steps="wait=many")
    with pytest.raises(UsageError, match="step_every"):
        JoinedRecording(step_every="a b")


SCRIPT = """
import torch
from distprof.integrations.joined_recording import JoinedRecording
recording = JoinedRecording()
recording.open()
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
raise ValueError("no more data")
"""


@pytest.mark.job
def test_an_exception_that_no_callback_hears_of_is_in_the_recording(tmp_path):
    done = forked.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False,
                      env=clean_environ() | {"DISTPROF_OUT": str(tmp_path / "run"),
                                             "DISTPROF_STEPS": "wait=1,count=4,time=0,trace=0,arrivals=0"})
    assert done.returncode == 1 and "ValueError: no more data" in done.stderr
    info = json.loads(next(tmp_path.glob("run/rank00000*/rank.json")).read_text())
    assert info["status"] == "partial" and "ValueError" in info["why"] and "no more data" in info["why"]


@pytest.mark.job
def test_the_entry_point_costs_nothing_where_nothing_is_recorded():
    code = ("import sys; from distprof.integrations.lightning_callbacks import callbacks; assert callbacks() == []; "
            "assert not {'torch', 'lightning', 'pyarrow', 'polars', 'numpy', 'msgspec'} & set(sys.modules); "
            "assert {name for name in sys.modules if name.startswith('distprof')} == "
            "{'distprof', 'distprof.integrations', 'distprof.integrations.lightning_callbacks'}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env=clean_environ())
    assert done.returncode == 0, done.stderr
