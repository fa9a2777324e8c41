"""A rank that completes is added to the file of its host; where that fails, the job goes on."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import distprof
from distprof.merge.run.summaries.summaries import read_summaries
from distprof.summaries import host_file
from distprof.summaries.host_file import files_of, frames_in, summary_of
from distprof.summaries.maker import summarise
from support.recording import train


def summaries_in(run):
    found = []
    for path in files_of(run):
        content = path.read_bytes()
        frames, lost = frames_in(path, content)
        assert lost == 0
        found += [summary_of(frame, content) for frame in frames]
    return found


def a_training(run):
    return train(run, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: torch.zeros(2, 4))


def test_it_is_made_of_the_folder(tmp_path):
    recorded = a_training(tmp_path / "run")
    (found,) = summaries_in(tmp_path / "run")
    assert found == summarise(recorded.folder)
    assert (found.folder, found.damaged, found.about.status) == ("rank00000", [], "complete")
    assert found.steps.rows == 4 and found.modules.rows == 3 and found.parameters.rows == 2


def test_a_file_system_that_takes_none(tmp_path, monkeypatch, capfd):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(host_file, "_append", full)
    assert a_training(tmp_path / "run").info["status"] == "complete"
    told = [line for line in capfd.readouterr().err.splitlines() if "host" in line]
    assert told == ["distprof: rank 0: not in the file of its host, so commands read its tables instead: [Errno 28] No "
                    "space left on device"]


def test_what_ended_the_script_is_added(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps = "wait=1,count=1,time=1,trace=1,arrivals=0"
    with pytest.raises(ValueError, match="late"), distprof.record(tmp_path / "run", steps=steps):
        for _ in range(6):
            model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
        raise ValueError("too late to be missed")
    failed = [one.about.failure is not None for one in summaries_in(tmp_path / "run")]
    assert (failed[0], failed[-1]) == (False, True)
    (failure,) = [one.failure for one in read_summaries([tmp_path / "run"]).abouts.values()]
    assert "too late to be missed" in failure.what


@pytest.mark.long
def test_of_a_restarted_job_the_last_attempt_counts(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setenv("DISTPROF_RUN_ID", "elastic")
    for rank, attempt, world_size in ((0, 0, 2), (1, 0, 2), (0, 1, 1)):
        for name, number in (("RANK", rank), ("TORCHELASTIC_RESTART_COUNT", attempt), ("WORLD_SIZE", world_size)):
            monkeypatch.setenv(name, str(number))
        a_training(run)
    assert [(one.about.rank, one.about.attempt) for one in summaries_in(run)] == [(0, 0), (1, 0), (0, 1)]
    found = read_summaries([run])
    assert {rank: about.attempt for rank, about in found.abouts.items()} == {0: 1}


@pytest.mark.long
def test_force_replaces_them(tmp_path):
    run = tmp_path / "run"
    a_training(run)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with distprof.record(run, steps="wait=1,count=1,time=1,trace=1", force=True):
        for _ in range(4):
            model(torch.zeros(2, 2)).sum().backward()
            optimizer.step()
    (found,) = summaries_in(run)
    assert found.parameters.params == 6
