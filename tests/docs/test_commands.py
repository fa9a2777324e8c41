"""Commands in the documentation are commands, with options that exist."""

from __future__ import annotations

import click
import pytest

from distprof.launch.cli import group
from distprof.launch.job_arguments import job_parser
from support.jobs import ROOT
from support.pages import commands

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _options(name: str) -> set[str]:
    if name == "run":
        return {option for action in job_parser()._actions for option in action.option_strings}
    context = click.Context(group)
    command = group.get_command(context, name)
    assert command is not None
    return {option for parameter in command.get_params(context) for option in
            (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page):
    names = group.list_commands(click.Context(group))
    for name, *words in commands(page):
        assert name in names, words
        script = next((index for index, word in enumerate(words) if word.endswith(".py")), len(words))
        ours = words[:script] if name == "run" else words
        given = [word.partition("=")[0] for word in ours if word.startswith("--")]
        given = [word for word in given if " " not in word]  # else it is what a quoted argument begins with
        assert set(given) <= _options(name), (name, words)
