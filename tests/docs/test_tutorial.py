"""Every command of docs/tutorial.md runs, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support import forked
from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.pages import consoles, differences
from support.shown_demo import OUT, printed

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
TUTORIAL = list(consoles(PAGE))
SOURCES = ("distprof", "merge", "launch", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
INSTALL = "pip install 'distprof[record]'"
PIP = " --quiet --no-deps --no-compile --target installed"
"""pip does what the page says with the sources here, but installs elsewhere than where the tests run, and no torch."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the script of the page, and `distprof` and `pip`: what is tested, is what these tests import."""
    script, = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "bin").mkdir()
    for name in ("distprof", "pip"):
        forked.write_program(tmp_path / "bin" / name, "-m", name)
    return tmp_path


def _run(command: str, folder: Path) -> subprocess.CompletedProcess:
    """What a terminal shows of a command is in stdout."""
    path = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", command], cwd=folder, env=clean_environ() | path, timeout=PATIENCE_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def _together(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stderr + done.stdout)


@pytest.mark.core
@pytest.mark.job
def test_the_page_can_be_followed(folder, shown_demo):
    """The demo was run before."""
    assert [shown.command.split()[0] for shown in TUTORIAL] == ["pip", *["distprof"] * 6]
    assert TUTORIAL[1].command == f"distprof demo --out {OUT}"
    shutil.copytree(shown_demo / "runs", folder / "runs")
    for shown in TUTORIAL[1:]:
        done = _run(shown.command, folder) if shown is not TUTORIAL[1] else _together(printed(shown_demo))
        assert (done.returncode, differences(shown.lines, done.stdout)) == (0, []), (shown.command, done.stdout)
        if "Rank 2 delays" in "".join(shown.lines):
            assert "`layers.1.mlp` forward takes" in done.stdout.split("Rank 2 delays")[1]


def test_what_a_page_shows_is_compared():
    printed = "4 ranks\n  rank 0   1.25 ms    all of it\nRank 2 delays\nparams   1,057  all equal"
    assert differences(["9 ranks", "...", "rank 7 33 us all ..."], printed) == []
    assert differences(["rank 0 1.25 ms none of it"], printed) == ["rank 0 1.25 ms none of it"]
    assert differences(["rank 0 1.25 ms all of it", "4 ranks"], printed) == ["4 ranks"]
    assert differences(["Rank 3 delays"], printed) == ["Rank 3 delays"]
    assert differences(["params 1,058 all equal"], printed) == ["params 1,058 all equal"]
    assert differences(["rank 0 dp0 ...~~~~AAAA"], "rank 1 dp0  ~~~~~~~~~.") == []
    assert TUTORIAL[0].command == INSTALL


NOT_COPIED = shutil.ignore_patterns("*.so", "*.tmp", "__pycache__")
"""What comes and goes while other tests run."""


@pytest.mark.job
def test_the_install_line_installs(folder):
    """As on the page, but from the sources, without torch, and into a folder."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=NOT_COPIED)
        else:
            shutil.copy(ROOT / name, folder)
    done = _run(INSTALL.replace("distprof[", ".[") + PIP, folder)
    if done.returncode and "No matching distribution found for hatchling" in done.stdout:
        pytest.skip("pip cannot install hatchling, which builds the package")
    assert done.returncode == 0, done.stdout
    assert (folder / "installed" / "bin" / "distprof").is_file()
    assert (folder / "installed" / "distprof" / "launch" / "cli.py").is_file()
