"""The `distprof` command group and its entry point; each subcommand is a file in `launch/commands/`."""

from __future__ import annotations

import difflib
import os
import pkgutil
import sys
from importlib import import_module
from typing import Any

import click

from distprof import __version__
from distprof.errors import DistprofError, UsageError
from distprof.launch import commands

ORDER = ("run", "merge", "stats", "comms", "count", "profile", "reconcile", "doctor")
"""Order of commands in the help; others follow by name."""


class Commands(click.Group):
    """Finds `distprof NAME` as the click command `NAME` in `commands/NAME.py` and imports only that file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f"{commands.__name__}.{cmd_name}"), cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names:
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean `distprof {near[0]}`?" if near else "distprof --help lists the commands"
            if args[0].endswith(".py"):
                hint = f"distprof run {args[0]}"
            raise UsageError(f"expected a command, found {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="distprof %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def group(*, debug: bool) -> None:
    """Find the rank and the layer that make a distributed PyTorch job slow.

    \b
    distprof run --nproc-per-node 4 train.py    record an unmodified script
    distprof merge runs/train-...               write one trace and reduced tables
    distprof stats runs/train-...               show the result on one screen
    distprof count models.py:build              count a model's FLOPs without a job
    """
    if debug:
        os.environ["DISTPROF_DEBUG"] = "1"


def main(argv: list[str] | None = None) -> None:
    """Runs a command and exits with its code; an error is one line on stderr."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = group.main(arguments, prog_name="distprof", standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        if argv is None and arguments[:1] == ["merge"] and "multiprocessing" not in sys.modules:
            os._exit(code)  # all files are written; a normal shutdown takes as long as merging a small run
        sys.exit(code)
    except DistprofError as error:
        _fail(str(error), error.exit_code, error)
    except click.ClickException as error:
        _fail(error.format_message(), 2, error)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of a pipe left: no error
        sys.exit(141)
    except OSError as error:
        _fail(f"cannot write the result: {error.strerror}", 1, error)
    except Exception as error:  # noqa: BLE001 (a bug in distprof; the traceback is shown on request)
        message = f"{type(error).__name__}: {error}"
        _fail(f"unexpected: {message}  hint: `distprof --debug ...` shows where; please report it", 1, error)


def _fail(message: str, code: int, error: Exception) -> None:
    if os.environ.get("DISTPROF_DEBUG"):
        raise error
    click.echo(f"distprof: {message}", err=True)
    sys.exit(code)
