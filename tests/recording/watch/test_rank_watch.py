"""Every step behind the last pass is noted once, with its phases, and nothing stays in the process."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import distprof
from distprof.recording.watch import rank_watch, root_phases, rows, watch_file
from support.jobs import called
from support.watched import noted, per_step, steps_of

PLAN = "wait=1,count=0,time=2,trace=0,arrivals=0"
PAUSE_S = 0.004
"""Far more than a busy machine adds to a step."""


def hooks() -> tuple[object, ...]:
    """What we might leave behind."""
    return ({*_global_optimizer_post_hooks.values(), *_global_optimizer_pre_hooks.values()},
            {*nn_module._global_forward_pre_hooks.values(), *nn_module._global_forward_hooks.values()},
            [*gc.callbacks], torch.amp.GradScaler.step)


class Sleeping(torch.autograd.Function):
    """Takes its time in backward."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(PAUSE_S * 3)
        return gradient


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(PAUSE_S * 2)
        return super().step(closure)


class SlowModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, data):
        time.sleep(PAUSE_S)
        return self.inner(data)


def train(run: Path, num_steps: int, *, explicit: bool = False, optimizers: int = 1, pause_s: float = 0.0,
          steps: str = PLAN) -> list[int]:
    """The steps that are noted of a job of so many steps."""
    model = nn.Linear(4, 4)
    before = hooks()
    each = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(optimizers)]
    with distprof.record(run, steps=steps) as rec:
        for step in range(num_steps):
            model(torch.ones(2, 4)).sum().backward()
            for optimizer in each:
                optimizer.step()
            if step >= num_steps // 2:
                time.sleep(pause_s)
            if explicit:
                rec.step()
    assert hooks() == before
    assert not model._forward_hooks and not model._forward_hooks_always_called
    return steps_of(noted(run).columns)


@pytest.mark.parametrize("explicit", [False, True])
def test_each_later_step_is_noted_once(tmp_path, explicit, short_rows):
    assert train(tmp_path / "run", 43, explicit=explicit, pause_s=0.03) == [*range(3, 43)]
    summary = json.loads(called("stats", "--json", tmp_path / "run").stdout)
    assert (summary["steps"]["num_recorded"], summary["steps"]["num_run"]) == (3, 43)
    notes = noted(tmp_path / "run").notes
    assert [note.kind for note in notes] == ["ended"] and notes[0].step == 43


@pytest.mark.long
def test_a_change_of_step_time_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "ROW_NS", 1)  # a row for each step
    assert train(tmp_path / "run", 43, pause_s=0.03) == [*range(3, 43)]
    summary = json.loads(called("stats", "--json", tmp_path / "run").stdout)
    assert 18 < summary["steps"]["change"]["step"] < 26  # other programs have the processor now and then
    said = called("stats", tmp_path / "run").stdout
    assert "steps 0-2 of 43 recorded" in said and "From step 2" in said


def test_a_pattern_of_optimizers_goes_on(tmp_path):
    assert train(tmp_path / "run", 30, optimizers=2)[-1] == 29


@pytest.mark.parametrize(("plan", "number"), [("off", 12), (PLAN, 24)])
def test_an_explicit_end_counts_until_something_is_measured(tmp_path, plan, number):
    """Two optimizer steps in each step that the script itself ends; with passes, it does so only after these."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=plan) as rec:
        for _ in range(12):
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            if plan == "off" or not rec.recording:
                rec.step()
    # without passes, each of the two optimizer steps before the first explicit end ended one
    assert steps_of(noted(tmp_path / "run").columns)[-1] == number - (plan != "off")


def test_without_passes_all_steps_but_the_first_are_noted(tmp_path):
    assert train(tmp_path / "run", 20, steps="off") == [*range(1, 20)]
    info = json.loads((tmp_path / "run" / "rank00000" / "rank.json").read_text())
    assert (info["status"], info["plan"], info["num_steps"]) == ("complete", "off", 1)
    assert info["params"] is not None
    assert called("stats", tmp_path / "run").returncode == 0


def test_off_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTPROF_WATCH", "off")
    assert train(tmp_path / "run", 12) == []
    assert not list(tmp_path.rglob("watch-*"))


@pytest.mark.parametrize("place", [(rank_watch.RankWatch, "_step_ended"), (rows.Rows, "end"),
                                   (watch_file.WatchFile, "_write"), (root_phases.RootPhases, "end_step")])
def test_whatever_is_wrong_then_harms_no_job(tmp_path, monkeypatch, capfd, place, short_rows):
    def fail(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(*place, fail)
    train(tmp_path / "run", 20, pause_s=0.01)
    assert capfd.readouterr().err.count("no longer watched") == 1


def test_a_folder_that_is_removed_ends_the_watch_and_not_the_job(tmp_path, monkeypatch, capfd, short_rows):
    monkeypatch.setattr(watch_file, "EVERY_S", 0.01)
    model, steps = nn.Linear(4, 4), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN) as rec:
        for steps in range(60):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.02)
            if steps == 10:
                (tmp_path / "run").rename(tmp_path / "moved")
        assert not rec.later.is_on
    assert steps == 59 and not (tmp_path / "run").exists()
    said = capfd.readouterr().err
    assert said.count("steps are no longer watched, training continues: No such file") == 1


def test_phases_are_those_of_the_script(tmp_path, short_rows):
    model = SlowModel()
    optimizer = SlowSGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for _ in range(12):
            time.sleep(PAUSE_S * 4)
            Sleeping.apply(model(torch.ones(2, 4))).sum().backward()
            optimizer.step()
    columns = noted(tmp_path / "run").columns
    for name, pauses in (("data_ns", 4), ("forward_ns", 1), ("backward_ns", 3), ("optimizer_ns", 2)):
        # what comes late on a busy machine lasts longer, never shorter: of nine steps one does not
        least_ms = (columns[name] / columns["num_steps"]).min() / 1e6
        assert PAUSE_S * 1e3 * pauses <= least_ms < PAUSE_S * 1e3 * (pauses + 0.9) + 2, name
    parts = sum(columns[name] for name in ("data_ns", "forward_ns", "backward_ns", "optimizer_ns"))
    assert (abs(parts - columns["span_ns"]) < 10_000).all()
    assert (columns["cpu_ns"] < columns["span_ns"] / 2).all() and (columns["cpu_ns"] > 0).all()
    assert (columns["host_bytes"] > 50e6).all() and (columns["device_bytes"] == -1).all()


def test_what_runs_in_a_closure_is_no_part_of_the_optimizer(tmp_path, short_rows):
    model = SlowModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = Sleeping.apply(model(torch.ones(2, 4))).sum()
        loss.backward()
        return loss

    with distprof.record(tmp_path / "run", steps=PLAN):
        for _ in range(12):
            optimizer.step(closure)
    columns = noted(tmp_path / "run").columns
    assert per_step(columns, "forward_ns") >= PAUSE_S * 1e3
    assert per_step(columns, "backward_ns") >= PAUSE_S * 3e3
    assert per_step(columns, "optimizer_ns") < PAUSE_S * 1e3


def test_forward_calls_of_accumulated_steps_add_up(tmp_path, short_rows):
    model = SlowModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for _ in range(9):
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    columns = noted(tmp_path / "run").columns
    assert per_step(columns, "forward_ns") >= 3 * PAUSE_S * 1e3
    assert steps_of(columns) == [*range(3, 9)]


def test_forward_calls_end_steps_in_inference(tmp_path, short_rows):
    model = SlowModel()
    with distprof.record(tmp_path / "run", steps=PLAN), torch.no_grad():
        for _ in range(20):
            model(torch.ones(2, 4))
            time.sleep(PAUSE_S * 2)
    columns = noted(tmp_path / "run").columns
    assert steps_of(columns)[-1] == 18  # nothing says that the last one is over
    assert per_step(columns, "data_ns") >= PAUSE_S * 2e3
    assert per_step(columns, "forward_ns") >= PAUSE_S * 1e3
    assert (columns["backward_ns"] == 0).all()
    assert "evaluation" not in {note.kind for note in noted(tmp_path / "run").notes}


def test_optimizers_that_step_while_backward_runs(tmp_path, short_rows):
    model = SlowModel()
    handles = []
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)
        handles.append(parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step()))
    with distprof.record(tmp_path / "run", steps=PLAN):
        for _ in range(20):
            Sleeping.apply(model(torch.ones(2, 4))).sum().backward()
    for handle in handles:
        handle.remove()  # else the optimizers are never freed
    columns = noted(tmp_path / "run").columns
    assert steps_of(columns)[-1] == 18
    assert per_step(columns, "backward_ns") >= PAUSE_S * 3e3


def test_evaluation_is_noted_and_a_teacher_is_none(tmp_path, short_rows):
    model, teacher = SlowModel(), SlowModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for step in range(16):
            with torch.no_grad():
                if step == 12:
                    teacher(torch.ones(2, 4))
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert [(note.kind, note.step) for note in noted(tmp_path / "run").notes] == [("evaluation", 12), ("ended", 16)]
    with distprof.record(tmp_path / "other", steps=PLAN):
        for _ in range(16):
            with torch.no_grad():
                teacher(torch.ones(2, 4))
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert [note.kind for note in noted(tmp_path / "other").notes] == ["ended"]


@pytest.mark.long
def test_garbage_collection_is_noted(tmp_path, short_rows):
    model, garbage = nn.Linear(4, 4), [[] for _ in range(200_000)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for step in range(20):
            model(torch.ones(2, 4)).sum().backward()
            if step > 10:
                gc.collect()
            optimizer.step()
    columns = noted(tmp_path / "run").columns
    assert len(garbage) and columns["gc_ns"][columns["first_step"] > 10].min() > 100_000


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.wrong, self.adds_hook = nn.Linear(4, 4), None, False

    def forward(self, data):
        if self.adds_hook:
            self.register_forward_hook(lambda *_: None, always_call=True)
            self.adds_hook = False
        if self.wrong is not None:
            raise self.wrong
        return self.inner(data)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("later_hook", [False, True])
def test_an_error_in_forward_stays_as_it_is_and_steps_go_on(tmp_path, short_rows, kind, later_hook):
    model, seen = Raises(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for step in range(20):
            model.wrong = kind("of the script") if step == 10 else None
            if later_hook and step == 10:
                model.adds_hook = True
            try:
                model(torch.ones(2, 4)).sum().backward()
            except kind as error:
                assert error is model.wrong
                seen.append(step)
            optimizer.step()
            time.sleep(0.005)
    assert seen == [10]
    columns = noted(tmp_path / "run").columns
    assert steps_of(columns) == [*range(3, 20)]
    assert (columns["forward_ns"][columns["first_step"] > 11] > 0).all()
    assert len(model._forward_hooks) == later_hook


class Copied(SlowModel):
    """Copies itself in the midst of its own call."""

    copies: ClassVar[list[nn.Module]] = []

    def forward(self, data):
        if len(self.copies) < 20:
            self.copies.extend((copy.deepcopy(self), pickle.loads(pickle.dumps(self))))
        return super().forward(data)


def test_a_model_that_is_wrapped_later_is_found_and_copies_have_nothing_of_ours(tmp_path, short_rows):
    model = Copied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for step in range(20):
            called_model = nn.Sequential(model) if step >= 8 else model
            called_model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    columns = noted(tmp_path / "run").columns
    assert per_step(columns, "forward_ns") >= PAUSE_S * 1e3
    assert len(Copied.copies) == 20
    for one in Copied.copies:
        assert one(torch.ones(1, 4)).shape == (1, 4)
        assert b"distprof" not in pickle.dumps(one)


def weights_after(run: Path | None, num_steps: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []

    def loop() -> None:
        for _ in range(num_steps):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

    if run is None:
        loop()
    else:
        with distprof.record(run, steps="off"):
            loop()
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def test_losses_and_weights_are_the_same(tmp_path):
    assert all(map(torch.equal, weights_after(None, 30), weights_after(tmp_path / "run", 30)))


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("has_thread", [True, False])
def test_a_child_that_is_forked_notes_nothing(tmp_path, monkeypatch, has_thread):
    monkeypatch.setattr(rows, "ROW_NS", 0)
    monkeypatch.setattr(watch_file, "is_scarce", lambda: not has_thread)
    monkeypatch.setattr(watch_file, "EVERY_S", 0.0 if not has_thread else 3.0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for _ in range(8):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        child = os.fork()
        if not child:
            clean = not nn_module._global_forward_pre_hooks
            for _ in range(5):
                model(torch.ones(2, 4))
                optimizer.step()
            os._exit(0 if clean and not [*(tmp_path / "run").rglob("watch-*.bin")] else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0
    assert steps_of(noted(tmp_path / "run").columns)[-1] == 7


def test_between_pause_and_resume_nothing_is_noted(tmp_path, monkeypatch, short_rows):
    monkeypatch.setattr(rows, "BATCH_NS", 0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    looked: list[int] = []

    class Windows:
        is_pending = False

        def look(self, step: int) -> None:
            looked.append(step)
            if step >= 10:
                rec.later.pause()
                rec.later.note("window_began", "1")

    with distprof.record(tmp_path / "run", steps=PLAN) as rec:
        for step in range(30):
            rec.later.windows = Windows() if step == 6 else rec.later.windows
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.012)
            if step == 20:
                assert not rec.later.is_on and not nn_module._global_forward_pre_hooks
                rec.later.windows = None
                rec.later.resume(21)
    piece = noted(tmp_path / "run")
    ends = piece.columns["first_step"] + piece.columns["num_steps"]
    steps = [step for first, end in zip(piece.columns["first_step"], ends, strict=True) for step in range(first, end)]
    assert looked == [*range(looked[0], looked[-1] + 1)] and looked[-1] == 10
    assert steps == [*range(3, 11), *range(21, 30)]
    assert [note.kind for note in piece.notes] == ["window_began", "ended"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["wrapped", "in place", "function"])
def test_compiled_code_is_neither_compiled_again_nor_broken(tmp_path, short_rows, how):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counted = torch._dynamo.utils.counters
    compiled = torch.compile(model, backend="eager") if how == "wrapped" else model
    if how == "in place":
        model.compile(backend="eager")
    if how == "function":
        compiled = torch.compile(lambda data: model(data), backend="eager")
    counted.clear()
    with distprof.record(tmp_path / "run", steps=PLAN):
        for step in range(20):
            if step == 6:
                before = dict(counted["stats"]), dict(counted["graph_break"])
            compiled(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.005)
    assert (dict(counted["stats"]), dict(counted["graph_break"])) == before
    assert not before[1]
    columns = noted(tmp_path / "run").columns
    assert steps_of(columns) == [*range(3, 20)]
    assert (np.median(columns["forward_ns"]) > 0) == (how != "function")
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", [False, True])
def test_what_we_do_is_seen_by_no_mode_of_the_script(tmp_path, mode):
    seen: list[str] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def calls(run: Path | None) -> list[str]:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        seen.clear()
        with Mode():
            if run is None:
                for _ in range(10):
                    model(torch.ones(2, 4)).sum().backward()
                    optimizer.step()
            else:
                with distprof.record(run, steps="off"):
                    for _ in range(10):
                        model(torch.ones(2, 4)).sum().backward()
                        optimizer.step()
        return list(seen)

    assert len(calls(tmp_path / "run" if mode else None)) == len(calls(None))
