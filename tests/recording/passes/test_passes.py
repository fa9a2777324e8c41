"""Passes behind their protocol: one that a test makes is switched, asked and written like those of the registry."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from distprof.contract.passes import PASS_NAMES
from distprof.contract.tables import OPS, TableRow
from distprof.model.modules import ModuleMap, Site
from distprof.model.scopes import ModuleScopes
from distprof.recording import pass_switch
from distprof.recording.communication.c10d import RunningWorks
from distprof.recording.communication.labels import CollectiveRecorder
from distprof.recording.line_sampler import LineSampler
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.passes.registry import PASS_CLASSES
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.profiler_sessions import ProfilerSessions
from support.recording import train


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def test_the_registry_and_the_contract_name_the_same_passes():
    assert tuple(kind.name for kind in PASS_CLASSES) == PASS_NAMES


class Logged(Pass):
    """Takes the place of the count pass and keeps what it is asked."""

    name = "count"
    log: list[str]

    def __init__(self, context: PassContext) -> None:
        type(self).log = []
        self._context = context

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    def next_step(self) -> None:
        self.log.append(f"step {self._context.step()} ended")

    def optimizer_begins(self) -> None:
        self.log.append(f"{self._context.phase()} begins")

    def optimizer_ends(self) -> None:
        self.log.append("optimizer ends")

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        return [{"calls": 7.0} for _ in sites]

    def step_columns(self) -> Sequence[TableRow]:
        return [{"fwd_ns": 5}]

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        self.log.append(f"write {len(steps)} {ended} {elsewhere}")
        folder.write_rows(OPS, [])


def test_a_pass_hears_of_its_steps_alone_and_its_columns_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(pass_switch, "PASS_CLASSES", tuple(
        Logged if kind.name == "count" else kind for kind in PASS_CLASSES))
    seen = train(tmp_path / "run", nn.Linear(3, 3), lambda: torch.ones(2, 3),
                 steps="wait=1,count=2,time=0,trace=1,arrivals=0")
    assert seen.info["status"] == "complete", seen.info["why"]
    one_step = ["optimizer begins", "optimizer ends"]
    assert Logged.log == ["write 1 False False", "start", *one_step, "step 1 ended", *one_step, "step 2 ended", "stop",
                          "write 3 False False", "write 4 True False"]
    assert seen.modules()[""]["calls"] == 7
    assert seen.table("steps")["fwd_ns"].to_list() == [None, 5, None, None]


def test_a_pass_that_overrides_nothing_records_nothing(tmp_path):
    modules = ModuleMap()
    scopes = ModuleScopes(modules, lambda function: function, lambda _: None)
    works = RunningWorks(lambda function: function)
    calls = CollectiveRecorder(scopes, lambda: (0, None), works, lambda function: function)
    idle = Pass(PassContext(scopes=scopes, guard=lambda function: function, note=print, tags=dict, step=lambda: 0,
                            folder=lambda: None, phase=lambda: None, are_work=lambda _: False, collectives=calls,
                            lines=LineSampler(lambda: 0), sessions=ProfilerSessions(works)))
    idle.start(), idle.restart_step(), idle.optimizer_begins(), idle.optimizer_ends(), idle.next_step(), idle.stop()
    assert (*idle.module_columns([]), *idle.step_columns()) == ()
