"""Which Python `make` makes its environment with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import ROOT

MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make")
SHIM = "echo 'pyenv: python3.12: command not found' >&2; exit 127"
"""What pyenv has for a version that is not chosen."""


def script(version: str, lacks: str = "") -> str:
    """A Python of this version, or one that cannot import a module."""
    hidden = f"sys.modules[{lacks!r}] = None; " if lacks else ""
    return f'exec {sys.executable} -c "import sys; {hidden}sys.version_info = {version}; exec(sys.argv[1])" "$2"'


@pytest.fixture
def made(tmp_path):
    """`make -n` of the environment where these programs are all there is."""
    def of(*words: str, **programs: str) -> subprocess.CompletedProcess:
        shutil.copy(ROOT / "Makefile", tmp_path)
        (tmp_path / "bin").mkdir()
        for name, text in programs.items():
            place = tmp_path / "bin" / name.replace("_", ".")
            place.write_text(f"#!/bin/sh\n{text}\n")
            place.chmod(0o755)
        outer = ("PYTHON", "MFLAGS", "MAKEFLAGS", "MAKELEVEL")  # of a make that runs the tests
        environ = {name: value for name, value in os.environ.items() if name not in outer}
        return subprocess.run([MAKE, "-n", ".venv/bin/python", *words], cwd=tmp_path, capture_output=True, text=True,
                              check=False, env=environ | {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)})
    return of


@pytest.mark.parametrize(("programs", "taken"), [
    ({"python3_11": script("(3, 11, 2)"), "python3_12": script("(3, 12, 1)")}, "python3.11"),
    ({"python3_11": SHIM, "python3_12": script("(3, 12, 1)")}, "python3.12"),
    ({"python3_12": script("(3, 12, 1)", lacks="ensurepip"), "python3_14": script("(3, 14, 0)")}, "python3.14"),
    ({"python3_11": SHIM, "python3": script("(3, 13, 0)")}, "python3"),
    ({"python3": script("(3, 10, 9)"), "python": script("(3, 12, 0)")}, "python"),
], ids=["first", "shim", "no venv", "python3", "old python3"])
def test_the_first_python_that_works_is_taken(made, programs, taken):
    done = made(**programs)
    assert done.returncode == 0 and done.stdout == f"{taken} -m venv .venv\n", done.stderr


def test_a_python_of_pyenv_is_taken_where_no_other_is(made, tmp_path):
    place: Path = tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python"
    place.parent.mkdir(parents=True)
    place.write_text(f"#!/bin/sh\n{script('(3, 13, 0)')}\n")
    place.chmod(0o755)
    assert made(python3_13=SHIM).stdout == f"{place} -m venv .venv\n"


@pytest.mark.parametrize("programs", [{}, {"python3_11": SHIM, "python3": script("(3, 15, 0)")}], ids=["none", "new"])
def test_where_none_works_one_line_says_what_to_install(made, programs):
    done = made(**programs)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "no Python 3.11 to 3.14 with venv found: install one (Debian: python3-venv)" in done.stderr


def test_the_one_that_is_named_is_taken(made):
    assert made("PYTHON=/opt/mine", python3_11=script("(3, 11, 2)")).stdout == "/opt/mine -m venv .venv\n"
