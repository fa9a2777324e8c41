"""An installed distprof with the entry points of this tree, whatever the environment has installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hooked import write_metadata


@pytest.fixture(scope="session")
def entry_points(tmp_path_factory) -> Path:
    """A folder for PYTHONPATH in which pip would have left the metadata of the package."""
    folder = tmp_path_factory.mktemp("installed")
    write_metadata(folder)
    return folder
