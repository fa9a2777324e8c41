"""Real runs that many tests look at, each recorded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jobs import EXAMPLES, merged, record_run


@pytest.fixture(scope="session")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo job: 4 data-parallel ranks, merged."""
    out = tmp_path_factory.mktemp("ddp") / "run"
    record_run(out, 4, EXAMPLES / "train_ddp.py", "--steps", 9, flags=("--steps", "wait=2,count=1,time=3,trace=2"))
    return merged(out)


@pytest.fixture(scope="session")
def tp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2-way tensor parallel x 2-way data parallel, merged."""
    out = tmp_path_factory.mktemp("tp") / "run"
    record_run(out, 4, EXAMPLES / "train_tp.py", "--steps", 9, flags=("--steps", "wait=2,count=1,time=3,trace=2"))
    return merged(out)
