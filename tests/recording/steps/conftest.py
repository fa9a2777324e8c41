"""No test of steps sees variables of a job that runs the tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID", "DISTPROF_STEP_EVERY"):
        monkeypatch.delenv(name, raising=False)
