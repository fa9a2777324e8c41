"""Commands that are recommended, in what commands print and on the page, run as they stand."""

from __future__ import annotations

import html
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from distprof.launch.cli import group
from distprof.merge.run import recorded
from support.jobs import called
from support.reading import reading_commands

COMMAND = re.compile(
    r"(?:^|`|<code>|: |  )(distprof (?!run |view |upload|doctor|demo)[a-z-]+(?: [^\n`<;,]*)?)", re.MULTILINE)


def recommended(text: str) -> Iterator[str]:
    """Command lines with a place in them."""
    for found in COMMAND.findall(html.unescape(text)):
        if "RUN" not in found and "a run" in found:
            yield found.strip()


def choices() -> Iterator[tuple[str, str, str]]:
    """Command, option and value, of those that read a run and have a list of values."""
    for name in ("stats", "export", "merge"):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        for option in command.params:
            if isinstance(option.type, click.Choice):
                yield from ((name, option.opts[0], value) for value in option.type.choices)


def test_every_value_of_every_choice_works(everything, tmp_path):
    found = list(choices())
    assert len(found) > 15
    for number, (name, option, value) in enumerate(found):
        more = {"stats": ("--modules",), "export": ("--out", tmp_path / str(number), "--rank", 0)}.get(
            name, ("--out", tmp_path / str(number)))
        done = called(name, option, value, *more, everything)
        lacks_dot = value == "svg" and "needs the program dot" in done.stderr
        assert lacks_dot or (done.returncode == 0 and not done.stderr), (name, option, value, done.stderr)


@pytest.mark.parametrize(("recording", "many"), [
    ("everything", False), ("two_late_ranks", True), *(pytest.param(*one, marks=pytest.mark.stress) for one in (
        ("everything", True), ("two_late_ranks", False)))])
def test_each_runs(request, recordings, tmp_path, monkeypatch, recording, many):
    run = Path(shutil.copytree(request.getfixturevalue(recording), tmp_path / "a run"))
    if many:
        monkeypatch.setattr(recorded, "MANY_RANKS", 1)
    found, ended = set[str](), dict[tuple[str, ...], subprocess.CompletedProcess[str]]()
    for words in reading_commands(run, run, tmp_path):
        done = ended[tuple(words)] = called(*words)  # some have nothing to say of a run without these passes
        page = run / "merged" / "report.html"
        found.update(recommended(done.stdout + done.stderr + (page.read_text() if words[0] == "report" else "")))
    assert len(found) > 5
    for line in sorted(found):
        words = tuple(shlex.split(line)[1:])
        done = ended[words] if words in ended else called(*words)
        assert done.returncode == 0 and "unexpected" not in done.stderr, (line, done.stderr)
