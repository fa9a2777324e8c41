"""A Python with distprof alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bare import make_bare
from support.recordings import Recordings


@pytest.fixture(scope="session")
def bare(recordings: Recordings) -> Path:
    """The folder of a virtual environment without torch."""
    return recordings.get("bare", make_bare)
