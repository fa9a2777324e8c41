"""When the watch asks the ranks to record by itself, and what that adds to a finding."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from distprof.contract.paths import RANK_JSON
from distprof.contract.watch_state import WatchFinding, certain_findings, window_folder
from distprof.errors import OutputError, UsageError
from distprof.launch.watching import explanations
from distprof.launch.watching.explanations import CloserLooks
from distprof.launch.watching.requests import RequestPolicy
from distprof.launch.watching.watcher_protocol import every_s
from distprof.launch.watching.window_causes import Explanation, _grown


def finding(name: str, *, kind: str = "slow_rank", rank: int = 1, until: int | None = None) -> WatchFinding:
    return WatchFinding(id=name, kind=kind, ranks=[rank], onset_step=10, onset_ns=1, until_step=until)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Findings of which ranks were asked; a recording is finished at once, and blames rank 1."""
    found: list[str] = []

    def ask(run: Path, steps: str, why: str, **_: object) -> SimpleNamespace:
        found.append(why)
        folder = window_folder(run, len(found)) / "rank00001"
        folder.mkdir(parents=True)
        (folder / RANK_JSON).touch()
        return SimpleNamespace(number=len(found))

    monkeypatch.setattr(explanations, "ask", ask)
    monkeypatch.setattr(explanations, "latest_step", lambda _: SimpleNamespace(step=5, step_s=0.02, age_s=1.0))
    monkeypatch.setattr(explanations, "finished", lambda *_: True)
    monkeypatch.setattr(explanations, "explained", lambda *_: [
        Explanation(rank=1, module="encoder.1", line="train.py:33")])
    return found


def looked(looks: CloserLooks, *findings: WatchFinding) -> None:
    """Often enough for a recording to be asked for, finished and read."""
    for _ in range(3):
        looks.look(findings)
        looks.wait(10.0)
    looks.join(findings)


def test_module_and_line_join_the_finding_whose_rank_they_are_of(tmp_path, asked):
    looks = CloserLooks(tmp_path, RequestPolicy(tmp_path, 0.0))
    mine, other = finding("a"), finding("b", rank=0)
    looked(looks, mine)
    looked(looks, mine, other)
    assert asked == ["a", "b"], "once for each"
    assert (mine.module, mine.line, mine.window) == ("encoder.1", "train.py:33", 1)
    assert (other.module, other.line, other.window) == (None, None, None)


def grown(growth: float, **modules: tuple[float, float]) -> str | None:
    """The module named for steps that grew, where each took so long before and since."""
    return _grown([{"module": name, "change": {"base": base, "new": new}} for name, (base, new) in modules.items()],
                  growth)


def test_the_module_that_grew_with_the_steps_of_all_ranks_is_named():
    assert grown(10.0, a=(20, 20), b=(5, 14), c=(20, 21)) == "b"
    assert grown(10.0, a=(0, 9), b=(20, 20)) == "a", "a module that is new"


@pytest.mark.parametrize("modules", [
    {"a": (60, 72), "b": (10, 12), "c": (10, 12)},  # a slower machine
    {"a": (10, 16), "b": (10, 15)},  # two modules
    {"a": (10, 14), "b": (10, 10)},  # less than half
    {"a": (10, 9)}, {}, {"": (1, 9)},
])
def test_where_other_things_grew_no_module_is_named(modules):
    assert grown(10.0, **modules) is None


@pytest.mark.parametrize("one", [finding("a", kind="pauses"), finding("a", kind="memory_growth"),
                                 finding("a", kind="hang"), finding("a", until=20)])
def test_what_steps_do_not_explain_or_is_over_asks_nobody(tmp_path, asked, one):
    looked(CloserLooks(tmp_path, RequestPolicy(tmp_path, 0.0)), one)
    assert asked == []


def test_ranks_are_asked_no_more_often_than_wanted(tmp_path, asked):
    looks = CloserLooks(tmp_path, RequestPolicy(tmp_path, 600.0))
    looked(looks, finding("a"), finding("b"))
    assert asked == ["a"]
    asked.clear()
    looked(CloserLooks(tmp_path, RequestPolicy(tmp_path, math.inf)), finding("c"))
    assert asked == []


def test_a_job_that_cannot_be_asked_goes_on_being_watched(tmp_path, asked, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OutputError("no space", hint="")

    monkeypatch.setattr(explanations, "ask", full)
    one = finding("a")
    looked(CloserLooks(tmp_path, RequestPolicy(tmp_path, 0.0)), one)
    assert one.window is None


def test_a_finding_is_told_once_it_has_been_there_for_a_while():
    some, seen = [finding("a"), finding("b", kind="stopped")], {"a": -math.inf}
    assert certain_findings(some, seen, running=True) == {"a", "b"}
    assert certain_findings([finding("c")], seen, running=True) == set()
    assert certain_findings([finding("c")], seen, running=False) == {"c"}


def test_minutes_between_two_looks():
    assert (every_s(None), every_s("off"), every_s("30")) == (None, 0.0, 1800.0)
    for wrong in ("0", "nan", "-5", "often"):
        with pytest.raises(UsageError):
            every_s(wrong)
