"""An installed distprof with the entry points of this tree, whatever the environment has installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from support.jobs import ROOT


@pytest.fixture(scope="session")
def entry_points(tmp_path_factory) -> Path:
    """A folder for PYTHONPATH in which pip would have left the metadata of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("installed")
    about = folder / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (about / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in targets.items())
        for group, targets in project["entry-points"].items()))
    return folder
