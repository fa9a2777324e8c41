"""An optimizer that is captured into a graph does not step then, but whenever the graph is replayed."""

import msgspec
import pytest
import torch

import distprof
from distprof.contract.rank_json import RankJson
from distprof.model import scopes
from distprof.recording.steps import optimizer_hooks


class Graph:
    """A graph without a device."""

    capturing = False

    def __init__(self) -> None:
        self.calls = []

    def capture_begin(self) -> None:
        Graph.capturing = True

    def capture_end(self) -> None:
        Graph.capturing = False

    def replay(self) -> None:
        self.calls.append("replay")


@pytest.fixture(autouse=True)
def _graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    for module in (optimizer_hooks, scopes):
        monkeypatch.setattr(module, "is_capturing", lambda: Graph.capturing)


def trained(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def recorded(run, steps: str, job) -> RankJson:
    with distprof.record(run, steps=steps):
        job()
    return msgspec.json.decode((run / "rank00000" / "rank.json").read_bytes(), type=RankJson)


def test_a_replay_is_a_step_and_a_capture_is_none(tmp_path):
    net, other = torch.nn.Linear(4, 4), Graph()
    optimizer, graph, own = torch.optim.SGD(net.parameters(), lr=0.1), Graph(), dict(vars(Graph))

    def job():
        trained(net, optimizer)
        for one, train in ((other, lambda: net(torch.ones(2, 4))), (graph, lambda: trained(net, optimizer))):
            one.capture_begin()
            train()
            one.capture_end()
        for _ in range(3):
            other.replay()  # forward alone, say
            graph.replay()

    rank = recorded(tmp_path / "run", "wait=0,count=1,time=3,trace=0,arrivals=0", job)
    assert {name: number for name, number in rank.passes.items() if number} == {"count": 1, "time": 3}
    assert rank.status == "complete" and rank.steps_found is not None
    assert graph.calls == other.calls == ["replay"] * 3
    assert {name: value for name, value in vars(Graph).items() if callable(value)} == {
        name: value for name, value in own.items() if callable(value)}, "what we put there is gone"


def test_steps_that_are_captured_alone_are_none(tmp_path):
    net = torch.nn.Linear(4, 4)
    optimizer, graph = torch.optim.SGD(net.parameters(), lr=0.1), Graph()

    def job():
        for step in range(5):
            if step in (1, 2):
                graph.capture_begin()
            trained(net, optimizer)
            graph.capture_end()

    rank = recorded(tmp_path / "run", "wait=0,count=1,time=2,trace=0,arrivals=0", job)
    assert rank.status == "complete" and rank.num_steps == 3
