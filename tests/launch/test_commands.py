"""The command group: one file per subcommand, found by its name; help that explains every option."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from distprof.launch import commands
from distprof.launch.cli import group, main
from support.jobs import clean_environ

NAMES = ("run", "watch", "trigger", "demo", "bench", "merge", "findings", "report", "view", "diff", "stats", "comms",
         "critical-path", "whatif", "ops", "memory", "waits", "mcp", "export", "split", "upload", "count",
         "profile", "reconcile", "doctor", "selftest")


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    shown = capsys.readouterr()
    assert (done.value.code or 0) == code, shown.err
    return shown.err if code else shown.out


def listed(text: str) -> list[str]:
    return [line.split()[0] for line in text.partition("Commands:\n")[2].splitlines()]


def test_commands_are_listed_in_the_order_of_work(capsys):
    assert listed(output(capsys, "--help")) == list(NAMES)


def test_a_new_file_is_a_new_command(capsys, tmp_path, monkeypatch):
    (tmp_path / "greet.py").write_text('''
import click

@click.command()
@click.argument("name")
def greet(name):
    """Greet somebody."""
    click.echo(f"Hello {name}")
''')
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    text = output(capsys, "--help")
    assert listed(text) == [*NAMES, "greet"] and "Greet somebody." in text
    assert output(capsys, "greet", "Ada") == "Hello Ada\n"


@pytest.mark.parametrize(("argument", "hint"), [
    ("stat", "did you mean `distprof stats`?"), ("train.py", "distprof run train.py"), ("qqqq", "distprof --help")])
def test_an_unknown_command_is_one_line_with_a_hint(capsys, argument, hint):
    text = output(capsys, argument, code=2)
    assert text.startswith(f"distprof: unknown command '{argument}'") and hint in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(("name", "given", "setting"), [
    ("stats", {}, "dirty_decay_ms:100,muzzy_decay_ms:0"), ("run", {}, "None"),
    ("stats", {"_RJEM_MALLOC_CONF": "narenas:1"}, "narenas:1")])
def test_the_allocator_is_set_for_reading_but_not_for_the_users_processes(name, given, setting):
    script = ("import os\nfrom distprof.launch import cli\n"
              "cli._run = lambda _: print(os.environ.get('_RJEM_MALLOC_CONF'), flush=True) or 0\ncli.main()")
    environ = {name: value for name, value in clean_environ().items() if name != "_RJEM_MALLOC_CONF"} | given
    found = subprocess.run([sys.executable, "-c", script, name], env=environ, capture_output=True, text=True,
                           check=True)
    assert found.stdout == f"{setting}\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_has_a_help_text_that_is_not_cut(name):
    context = click.Context(group)
    command = group.get_command(context, name)
    assert command is not None and command.name == name
    assert not command.get_short_help_str(limit=65).endswith("...")
    assert all(option.help for option in command.params if isinstance(option, click.Option))
