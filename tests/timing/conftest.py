"""The clock that tests move by hand."""

from __future__ import annotations

import pytest

from support.ticks import Clock


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("distprof.timing.time_pass.stopwatch", lambda: clock)
    return clock
