"""No test of steps sees variables of a job that runs the tests, nor optimizers of earlier tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID", "DISTPROF_STEP_EVERY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_optimizers():
    """Whether one is alive tells training from inference, and one in a cycle lives until it is collected."""
    gc.collect()
