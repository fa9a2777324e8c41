"""A rank hears when the watcher of the job asks where it is."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from distprof.contract.watch_state import REQUEST_JSON, WATCH, WindowRequest
from distprof.files import write_whole
from distprof.launch.watching.hangs import ask_for_stacks
from distprof.recording.hang.watch import HangWatch, StacksAsked


def test_each_time_counts_once(tmp_path):
    asked = StacksAsked(lambda: tmp_path / "rank00000")
    assert not asked.is_new()
    for _ in range(2):
        ask_for_stacks(tmp_path)
        assert asked.is_new()
        assert not asked.is_new()


def test_a_request_is_answered_later_where_the_progress_cannot_be_read_now(tmp_path, monkeypatch):
    """A dictionary of torch, for example, changes while it is read."""
    watch = HangWatch(SimpleNamespace(rank_folder=tmp_path / "rank00000"), None, None, lambda: True, lambda: 0)
    waits = iter([lambda: None, lambda: ask_for_stacks(tmp_path), lambda: None, lambda: None, lambda: True])
    looks = iter([lambda: 0, lambda: 0, lambda: 1 / 0, lambda: 0, lambda: 0])
    answers: list[float] = []
    monkeypatch.setattr(watch, "_over", SimpleNamespace(wait=lambda _: next(waits)()))
    monkeypatch.setattr(watch, "_look", lambda: next(looks)())
    monkeypatch.setattr(watch, "_on_asked", answers.append)
    watch._watch()
    assert len(answers) == 1


def test_what_was_asked_before_does_not_count(tmp_path):
    ask_for_stacks(tmp_path)
    asked = StacksAsked(lambda: tmp_path / "rank00000")
    assert not asked.is_new()
    ask_for_stacks(tmp_path)
    assert asked.is_new()


def test_a_request_for_a_recording_asks_for_no_stacks_and_stays(tmp_path):
    asked = StacksAsked(lambda: tmp_path / "rank00000")
    asked.is_new()
    path = tmp_path / WATCH / REQUEST_JSON
    path.parent.mkdir()
    text = msgspec.json.encode(WindowRequest(number=4, first_step=90, steps="trace=2", why="asked"))
    write_whole(path, lambda temporary: temporary.write_bytes(text))
    assert not asked.is_new()
    ask_for_stacks(tmp_path)
    assert asked.is_new()
    kept = msgspec.json.decode(path.read_bytes(), type=WindowRequest)
    assert (kept.number, kept.first_step, kept.steps, kept.stacks) == (4, 90, "trace=2", 1)


@pytest.mark.parametrize("content", [b"{", b'{"steps": "\xff"}', b'{"x":' * 100_000])
def test_what_cannot_be_read_asks_for_nothing(tmp_path, content):
    asked = StacksAsked(lambda: tmp_path / "rank00000")
    asked.is_new()
    (tmp_path / WATCH).mkdir()
    (tmp_path / WATCH / REQUEST_JSON).write_bytes(content)
    assert not asked.is_new()
    ask_for_stacks(tmp_path)
    assert asked.is_new()
    assert not StacksAsked(lambda: None).is_new()
