"""A Python with distprof alone, and a run that has something for every command that reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bare import make_bare
from support.jobs import EXAMPLES, merged, record_run
from support.recordings import Recordings

PLAN = "wait=1,count=1,time=1,sync=1,execution=1,trace=4,memory=1,arrivals=0"


@pytest.fixture(scope="session")
def bare(recordings: Recordings) -> Path:
    """The folder of a virtual environment without torch."""
    return recordings.get("bare", make_bare)


@pytest.fixture(scope="session")
def everything(recordings: Recordings) -> Path:
    """Two ranks with every pass, merged."""
    def record(out: Path) -> None:
        record_run(out, 2, EXAMPLES / "train_ddp.py", "--steps", 12, flags=("--steps", PLAN))
        merged(out)

    return recordings.get("everything", record)
