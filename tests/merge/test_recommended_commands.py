"""Commands that are recommended, in what commands print and on the page, run as they stand."""

from __future__ import annotations

import html
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.merge.run import recorded
from support.jobs import called
from support.reading import reading_commands

COMMAND = re.compile(
    r"(?:^|`|<code>|: |  )(distprof (?!run |view |upload|doctor|demo)[a-z-]+(?: [^\n`<;,]*)?)", re.MULTILINE)


@pytest.fixture(params=["everything", "two_late_ranks"])
def run(request, recordings, tmp_path) -> Path:
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "a run"))


def recommended(text: str) -> Iterator[str]:
    """Command lines with a place in them."""
    for found in COMMAND.findall(html.unescape(text)):
        if "RUN" not in found and "a run" in found:
            yield found.strip()


@pytest.mark.parametrize("many", [False, True])
def test_each_runs(run, tmp_path, monkeypatch, many):
    if many:
        monkeypatch.setattr(recorded, "MANY_RANKS", 1)
    found = set[str]()
    for words in reading_commands(run, run, tmp_path):
        done = called(*words)  # some have nothing to say of a run without these passes
        page = run / "merged" / "report.html"
        found.update(recommended(done.stdout + done.stderr + (page.read_text() if words[0] == "report" else "")))
    assert len(found) > 5
    ended = {line: called(*shlex.split(line)[1:]) for line in sorted(found)}
    assert {line: done.stderr for line, done in ended.items() if done.returncode or "unexpected" in done.stderr} == {}
