"""A Python environment in which pip has installed distprof with only its required packages, so without torch.

Packages are links to those of this Python, so creating it takes a second and downloads nothing. Packages that distprof
imports without requiring them are missing there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support import commands_in_turn
from support.jobs import PATIENCE_S, ROOT, clean_environ

BUILDS = "No matching distribution found for hatchling"


def make_bare(folder: Path) -> None:
    """Creates a virtual environment, builds distprof's wheel and installs it."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    here = ["--no-build-isolation"] if find_spec("hatchling") else []
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *here, "--wheel-dir", folder / "wheel", ROOT)
    _run(sys.executable, "-m", "pip", "--quiet", "--python", folder / "bin" / "python", "install", "--no-deps",
         "--no-index", *(folder / "wheel").glob("*.whl"))
    installed = next(site_packages(folder).glob("distprof-*.dist-info"))
    link_packages(site_packages(folder), Distribution.at(installed).requires or ())


def site_packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def link_packages(folder: Path, requirements: Iterable[str]) -> Path:
    """Links packages and their requirements into a folder."""
    folder.mkdir(exist_ok=True)
    for package in _with_needed(requirements, set()):
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(package.locate_file(name))).resolve())
    return folder


def _with_needed(requirements: Iterable[str], seen: set[str]) -> Iterator[Distribution]:
    for needed in map(Requirement, requirements):
        if needed.name in seen or not (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            continue
        seen.add(needed.name)
        package = distribution(needed.name)
        yield package
        yield from _with_needed(package.requires or (), seen)


def in_turn(python: Path | str, commands: list[list[str]], **environ: str) -> list[subprocess.CompletedProcess]:
    """Runs all commands in one process of that Python."""
    done = subprocess.run([python, commands_in_turn.__file__], input=json.dumps(commands), capture_output=True,
                          text=True, timeout=PATIENCE_S, env=clean_environ() | {"PYTHONPATH": ""} | environ,
                          check=False)
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess(words, *found) for words, found in zip(
        commands, json.loads(done.stdout), strict=True)]


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=clean_environ(), check=False,
                          timeout=PATIENCE_S)
    if BUILDS in done.stdout + done.stderr:
        pytest.skip("pip cannot install hatchling, which builds the package")
    assert done.returncode == 0, done.stderr
