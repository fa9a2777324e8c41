"""Writes docs/command-line.md: every command and option, as click and argparse know them.

python docs/command_line.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from distprof.launch.cli import group
from distprof.launch.job_arguments import job_parser

PAGE = Path(__file__).parent / "command-line.md"

HEAD = """# The command line

`docs/command_line.py` makes this page from the options in `launch/commands/`; `distprof COMMAND --help` shows the same.
`distprof --version` shows the version and the merge engine, `distprof --debug COMMAND` shows tracebacks of errors.

| exit code | means |
|---|---|
| 0 | done |
| 1 | it could not be done: the message says what was expected, what was found, and a hint |
| 2 | the arguments are wrong |
| 3 | done, and data is missing; only with `--strict` |
| 128 + n | ended by signal n |

`distprof run` ends with the exit code of the first rank that failed. Environment variables:
[Recording](recording.md#without-our-launcher).
"""


def page() -> str:
    """The whole page."""
    context = click.Context(group, info_name="distprof")
    parts = [HEAD]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        parts += _run(command) if name == "run" else _section(command, name)
    return "".join(parts)


def _section(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"\n## {name}\n\n    distprof {name} {' '.join(command.collect_usage_pieces(context))}\n\n"
    yield f"{_prose(command)}\n\n"
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record:
            yield _item(*record)


def _run(command: click.Command) -> Iterator[str]:
    """torchrun's parser with our flags, of which those that torchrun has are not listed again."""
    yield "\n## run\n\n    distprof run [OPTIONS] [TORCHRUN FLAGS] [-m] SCRIPT [SCRIPT FLAGS]\n\n"
    yield f"{_prose(command)} Besides those, such as `--nproc-per-node 4` or `--nnodes 2`:\n\n"
    ours = next(found for found in job_parser()._action_groups if found.title == "recording")
    for action in ours._group_actions:
        words = [*action.option_strings, *([str(action.metavar)] if action.metavar else [])]
        text = str(action.help)
        yield _item(" ".join(words), f"{text[0].upper()}{text[1:]}.")


def _prose(command: click.Command) -> str:
    paragraphs = cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(_escaped(" ".join(paragraph.split())) for paragraph in paragraphs)


def _item(names: str, text: str) -> str:
    return f"* `{names}`: {_escaped(' '.join(text.split()))}\n"


def _escaped(text: str) -> str:
    """Text as Markdown that shows it; what stands in backticks is Markdown already."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page())
