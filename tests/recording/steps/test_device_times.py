"""Steps take on the device what lies between marks on its stream, however far the host is ahead."""


import polars as pl
import pytest
import torch

import distprof
from distprof.recording.steps import current_step


class Stream:
    """A device that needs 3 ms for each step, and a host that needs no time to send it."""

    def __init__(self) -> None:
        self.done_ms, self.fails = 0.0, False

    def recorded(self) -> "Event":
        event = Event(self)
        event.record()
        return event


class Event:
    device = torch.device("cuda", 0)

    def __init__(self, stream: Stream) -> None:
        self.stream, self.waited = stream, False

    def record(self) -> None:
        self.at_ms = self.stream.done_ms

    def query(self) -> bool:
        self.waited = True
        if self.stream.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return True

    def elapsed_time(self, later: "Event") -> float:
        assert later.waited
        return later.at_ms - self.at_ms


@pytest.fixture
def stream(monkeypatch):
    found = Stream()
    monkeypatch.setattr(current_step, "recorded_event", found.recorded)
    return found


def test_each_step_has_its_time_on_the_device(tmp_path, stream):
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=2,trace=0,arrivals=0"):
        for step in range(5):
            loss = net(torch.ones(2, 4)).sum()
            stream.done_ms += 3 + step
            loss.backward()
            optimizer.step()
    table = pl.read_parquet(tmp_path / "run" / "rank00000" / "steps.parquet")
    assert table["device_ns"].to_list() == [3_000_000, 4_000_000, 5_000_000]


def test_what_was_recorded_stays_when_the_device_fails(tmp_path, stream):
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="script"), distprof.record(
            tmp_path / "run", steps="wait=0,count=1,time=9,trace=0,arrivals=0"):
        for _ in range(3):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        stream.fails = True
        raise RuntimeError("of the script")
    table = pl.read_parquet(tmp_path / "run" / "rank00000" / "steps.parquet")
    assert len(table) == 3 and table["device_ns"].null_count() == 3


def test_without_an_accelerator_they_have_none(tmp_path):
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=1,trace=0,arrivals=0"):
        for _ in range(3):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert pl.read_parquet(tmp_path / "run" / "rank00000" / "steps.parquet")["device_ns"].null_count() == 2
