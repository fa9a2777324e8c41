"""An optimizer that is captured into a graph does not step then, and nothing is switched on or off meanwhile."""

import msgspec
import torch

import distprof
from distprof.contract.rank_json import RankJson
from distprof.model import scopes
from distprof.recording.steps import optimizer_hooks


def test_a_step_that_is_captured_ends_no_step_and_is_said(tmp_path, monkeypatch):
    capturing = False
    for module in (optimizer_hooks, scopes):
        monkeypatch.setattr(module, "is_capturing", lambda: capturing)
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=0,count=1,time=2,trace=0,arrivals=0"):
        for step in range(6):
            capturing = step in (1, 2)
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    rank = msgspec.json.decode((tmp_path / "run" / "rank00000" / "rank.json").read_bytes(), type=RankJson)
    assert {name: number for name, number in rank.passes.items() if number} == {"count": 1, "time": 2}
    assert rank.status == "complete"
    assert [note for note in rank.notes if "captured into a graph" in note] == [optimizer_hooks.ABOUT_GRAPHS]
