"""Every command of docs/seeds.md runs, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support import forked
from support.chakra_tools import BIN, has_chakra
from support.fork_server import SPAWNED
from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.pages import consoles, differences
from support.ports import free_port

PAGE = (ROOT / "docs" / "seeds.md").read_text()
PORT = "29500"
"""The page's; two tests of it at a time need two."""
FOREIGN = re.compile(r"\[W\d{4}|USDT:|Warning:|Traceback")
"""Begins of what torch, Kineto and Python print by themselves."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page, and programs that it calls: `python` is forked, with the hook of a start."""
    for name, text in re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text.replace(PORT, str(free_port())))
    (tmp_path / "bin").mkdir()
    forked.write_program(tmp_path / "bin" / "distprof", "-m", "distprof")
    forked.write_program(tmp_path / "bin" / "python")
    for tool in BIN.glob("chakra_*"):
        (tmp_path / "bin" / tool.name).symlink_to(tool)
    return tmp_path


@pytest.mark.job
def test_the_page_can_be_followed(folder):
    path = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", SPAWNED: "1"}
    for command, lines in consoles(PAGE):
        if command.startswith("chakra_") and not has_chakra():
            continue
        done = subprocess.run(["sh", "-c", command], cwd=folder, env=clean_environ() | path, timeout=PATIENCE_S,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert (done.returncode, differences(lines, done.stdout)) == (0, []), (command, done.stdout)
        assert not FOREIGN.search(done.stdout), (command, done.stdout)
    assert (folder / "rank0.json").stat().st_size > 0 or not has_chakra()
