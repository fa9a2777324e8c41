"""The `distprof` command group and its entry point; each subcommand is a file in `launch/commands/`."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof import __version__
from distprof.errors import DistprofError, Ended, LackingError, UsageError
from distprof.launch import commands
from distprof.launch.limits import is_limited, reached
from distprof.launch.standard_streams import close_standard_output, open_standard_streams, tell_errors_once
from distprof.launch.what_next import command_names
from distprof.system import SIGPIPE
from distprof.terminal import relay, say, show

if TYPE_CHECKING:
    from distprof.launch.guarded import Outcome

ORDER = ("run", "watch", "trigger", "demo", "bench", "merge", "findings", "report", "view", "diff", "stats", "comms",
         "critical-path", "whatif", "ops", "memory", "waits", "mcp", "export", "split", "upload", "count",
         "profile", "reconcile", "doctor", "selftest")
"""Order of commands in the help; others follow by name."""
RECORDING = ("run", "demo", "bench", "selftest")
"""Commands that start ranks."""
READING = ("merge", "findings", "report", "diff", "stats", "comms", "critical-path", "whatif", "ops", "memory",
           "waits", "export", "split", "upload")
"""Commands that read runs; they have nothing left to do when the interpreter shuts down."""
ALLOCATOR = ("_RJEM_MALLOC_CONF", "dirty_decay_ms:100,muzzy_decay_ms:0")
"""Setting of polars' allocator (jemalloc), which by default keeps freed memory for 10 s, although numpy needs it next.
It is read when polars is imported."""


TABLES = ("merge", "diff", "stats", "comms", "critical-path", "whatif", "ops", "memory", "waits")
"""Commands that cut tables to the width of the terminal; they have `--wide`."""


class Commands(click.Group):
    """Finds `distprof NAME` as the click command `NAME` in `commands/NAME.py` and imports only that file.

    A hyphen in the name of a command is an underscore in the names of its file and function.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(command_names(), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"{commands.__name__}.{name}"), name)
        if cmd_name in TABLES and not any(one.name == "wide" for one in command.params):
            command.params.append(click.Option(
                ["--wide"], is_flag=True, expose_value=False, callback=_show_whole,
                help="Do not cut names in tables to the width of the terminal."))
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if ctx.resilient_parsing:  # for tab completion
            return super().resolve_command(ctx, args)
        names = self.list_commands(ctx)
        if args[0] not in names:
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean `distprof {near[0]}`?" if near else "distprof --help lists the commands"
            if args[0].endswith(".py"):
                hint = f"distprof run {args[0]}"
            raise UsageError(f"unknown command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)


def _show_whole(_context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 (click's order)
    if wanted:
        os.environ["DISTPROF_WIDE"] = "1"


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 (click's order)
    """Shows the version and the merge engine in use."""
    if wanted and not context.resilient_parsing:
        from distprof.merge.scan.engine import described

        show(f"distprof {__version__}\n{described()}")
        context.exit()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the version and the merge engine.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def group(context: click.Context, *, debug: bool) -> None:
    """Find the rank and the layer that make a distributed PyTorch job slow.

    \b
    distprof demo                               record a small job with a late rank, and find it
    distprof run --nproc-per-node 4 train.py    record an unmodified script
    distprof report runs/train-...              write a page with all findings
    distprof stats runs/train-...               show the result on one screen
    distprof count models.py:build              count a model's FLOPs without a job

    \b
    Tab completion: eval "$(_DISTPROF_COMPLETE=bash_source distprof)" (zsh_source and fish_source for zsh and fish)
    """
    if debug:
        os.environ["DISTPROF_DEBUG"] = "1"
    if context.invoked_subcommand is None:
        _show_help(context)


def _show_help(context: click.Context) -> None:
    """Shows the help and suggested next commands for this folder."""
    from distprof.launch.what_next import what_next

    lines = what_next(Path())
    show("\n".join((context.get_help(), "", "Next in this folder:", *(f"  {line}" for line in lines))))


def main(argv: list[str] | None = None) -> None:
    """Runs a command and exits with its code; an error is one line on stderr."""
    open_standard_streams()
    if argv is None:
        tell_errors_once()
    arguments = sys.argv[1:] if argv is None else argv
    command = next((word for word in arguments if not word.startswith("-")), "")
    # ranks of a job are the user's processes: their output must appear at once
    debug = "--debug" in arguments or "DISTPROF_DEBUG" in os.environ
    if argv is None and command in READING:
        os.environ.setdefault(*ALLOCATOR)
    guarded = argv is None and command not in RECORDING and not debug and is_limited()
    outcome = _guarded(arguments) if guarded else _run(arguments)
    if isinstance(outcome, str):
        say(outcome)
    code = outcome if isinstance(outcome, int) else 1
    if not close_standard_output():
        code = code or 128 + SIGPIPE
    if argv is None and command in READING and "concurrent.futures.process" not in sys.modules:
        os._exit(code)  # all output is written; a normal shutdown takes as long as merging a small run
    sys.exit(code)


def _guarded(arguments: list[str]) -> Outcome:
    from distprof.launch.guarded import run_guarded  # needs Linux

    return run_guarded(lambda: _run(arguments))


def _run(arguments: list[str]) -> Outcome:
    """Runs a command and reports errors; returns its exit code, or a line about a limit that was reached."""
    code: Any
    stdout = sys.stdout
    try:
        code = group.main(arguments, prog_name="distprof", standalone_mode=False) or 0
        sys.stdout.flush()
    except SystemExit as end:
        # click replaces standard output if the reader of the help closed the pipe
        code = end.code or 0 if sys.stdout is stdout else 128 + SIGPIPE
    except Ended as end:
        code = end.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        code = 128 + SIGPIPE
    except click.ClickException as error:
        code = _fail(error.format_message(), 2, error)
    except DistprofError as error:
        limit = reached(error) if isinstance(error, LackingError) else None  # torch may not fit within the limits
        if limit is not None and not os.environ.get("DISTPROF_DEBUG"):
            return limit
        code = _fail(str(error), error.exit_code, error)
    except BaseException as error:  # noqa: BLE001 (a panic of polars is not an Exception)
        return _unexpected(error)
    return code if isinstance(code, int) else 1


def _unexpected(error: BaseException) -> Outcome:
    limit = None if os.environ.get("DISTPROF_DEBUG") else reached(error)
    if limit is not None:
        return limit
    if isinstance(error, OSError):
        what = f"read or write {os.fsdecode(error.filename)}" if isinstance(
            error.filename, (str, bytes)) else "write the result"
        hint = getattr(error, "hint", "")
        return _fail(f"cannot {what}: {error.strerror}{f'  hint: {hint}' if hint else ''}", 1, error)
    message = f"unexpected: {type(error).__name__}: {error}"
    return _fail(f"{message}  hint: `distprof --debug ...` shows the traceback; please report it", 1, error)


def _fail(message: str, code: int, error: BaseException) -> int:
    if os.environ.get("DISTPROF_DEBUG"):
        import traceback

        relay("".join(traceback.format_exception(error)).rstrip())  # as Python prints it, except for secrets
    else:
        say(message)
    return code
