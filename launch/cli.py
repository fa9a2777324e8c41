"""The `distprof` command: arguments come in, one function per subcommand runs, an exit code goes out."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof import __version__
from distprof.errors import DistprofError, UsageError
from distprof.files import write_text
from distprof.launch.commands.comms import comms
from distprof.launch.commands.merge import STRICT, merge

if TYPE_CHECKING:
    from distprof.launch.deepspeed_config import FlopsProfilerSection

SORTS = ("params", "macs", "flops", "fwd", "bwd", "time", "path")
RUN = click.argument("run", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Group(click.Group):
    """Commands in the order of work, with a suggestion for a word that is none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.commands:
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f"did you mean `distprof {near[0]}`?" if near else "distprof --help lists the commands"
            if args[0].endswith(".py"):
                hint = f"distprof run {args[0]}"
            raise UsageError(f"expected a command, found {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="distprof %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def commands(*, debug: bool) -> None:
    """Which rank and which layer makes a distributed PyTorch job slow.

    \b
    distprof run --nproc-per-node 4 train.py    record an unmodified script
    distprof merge runs/train-...               one trace, reduced tables
    distprof stats runs/train-...               the answer in one screen
    distprof count models.py:build              what a model costs, without a job
    """
    if debug:
        os.environ["DISTPROF_DEBUG"] = "1"


@commands.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False,
                                    "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Record a script on all ranks: a torchrun that profiles."""
    from distprof.launch.run import run as run_job

    sys.exit(run_job(arguments, report=_report))


def _report(directory: Path, section: FlopsProfilerSection) -> None:
    """Prints what the flops_profiler section of a DeepSpeed config asks for."""
    from distprof.merge.text.deepspeed import deepspeed_text

    text = deepspeed_text(directory, profile_step=section.profile_step, module_depth=section.module_depth,
                          top_modules=section.top_modules, detailed=section.detailed,
                          recompute_fwd_factor=section.recompute_fwd_factor)
    if not section.output_file:
        click.echo(text)
        return
    write_text(Path(section.output_file), text + "\n")


commands.add_command(merge)


@commands.command()
@RUN
@JSON
@STRICT
@click.option("--top", default=None, type=click.IntRange(min=1),
              help="Number of modules to show; 10, and all with --modules.")
@click.option("--modules", is_flag=True, help="Show the modules as a tree.")
@click.option("--depth", default=None, type=click.IntRange(min=0),
              help="With --modules: levels below the root; 3, and all with --json.")
@click.option("--sort", default=None, type=click.Choice(SORTS),
              help="With --modules: the largest first, by params, MACs, FLOPs, forward time, backward time or both; "
                   "path is the order of the model, which is the default.")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of a rank's device for MFU, like 1.2e12, instead of the published one.")
def stats(run: Path, *, as_json: bool, strict: bool, top: int | None, modules: bool, depth: int | None,
          sort: str | None, peak: float | None) -> None:
    """Print totals per GPU and of the model, steps, modules and ranks of RUN."""
    from distprof.merge.commands.stats import stats as stats_of
    from distprof.merge.commands.stats import stats_by_module
    from distprof.reporters.view import View

    if modules:
        default = None if as_json else 3  # a program wants all of it
        view = View(depth=default if depth is None else depth, top=top, sort=sort or "path")
        click.echo(stats_by_module(run, view, as_json=as_json, strict=strict))
        return
    if depth is not None or sort is not None:
        raise UsageError(f"expected {'--sort' if depth is None else '--depth'} together with --modules",
                         hint=f"distprof stats --modules {run}")
    click.echo(stats_of(run, as_json=as_json, strict=strict, top=top or 10, peak=peak))


commands.add_command(comms)


DEVICE = click.option(
    "--device", default="meta", type=click.Choice(["meta", "cpu"]), show_default=True,
    help="Where the model is made and run. meta takes no memory, and attention runs there as plain products.")


def _of_model(command: Callable[..., None]) -> Any:
    """The argument and options that say which model is called with what."""
    for option in (
        JSON,
        click.option("--dtype", "dtypes", multiple=True, metavar="TYPE",
                     help="Element type of the inputs, float32 if not given; once for all or once per --input-shape."),
        click.option("--input-shape", "shapes", multiple=True, metavar="1,3,224,224",
                     help="Shape of an input tensor; once per positional input. Not needed where the factory returns "
                          "inputs."),
        click.argument("model", metavar="MODULE:FACTORY"),
    ):
        command = option(command)
    return command


def _tree(*sorts: str) -> Callable[[Any], Any]:
    """The options of a tree of modules."""
    options = (
        click.option("--sort", default="path", type=click.Choice(sorts), show_default=True,
                     help="The largest first; path is the order of the model."),
        click.option("--top", default=None, type=click.IntRange(min=1),
                     help="Number of modules to show; all if not given."),
        click.option("--depth", default=3, type=click.IntRange(min=0), show_default=True,
                     help="Levels below the root."),
    )

    def add(command: Any) -> Any:
        for option in options:
            command = option(command)
        return command

    return add


@commands.command()
@_of_model
@DEVICE
@click.option("--backward", is_flag=True, help="Count backward too.")
@_tree("params", "macs", "flops", "path")
def count(model: str, **options: Any) -> None:
    """Count FLOPs, MACs, bytes and parameters of one call of a model.

    MODULE:FACTORY is a class or function without arguments that is importable from here, like
    torchvision.models:resnet50 or path/to/file.py:build. It returns a model, or (model, inputs) where inputs are a
    tensor, a tuple or a dict.
    """
    from distprof.launch.commands.count import count as count_model

    click.echo(count_model(model, **options))


@commands.command()
@_of_model
@click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]), show_default=True,
              help="Where the model is made and run.")
@click.option("--backward", is_flag=True, help="Count and time backward too.")
@click.option("--warmup", default=3, type=click.IntRange(min=0), show_default=True, help="Calls before the timed ones.")
@click.option("--runs", default=10, type=click.IntRange(min=1), show_default=True, help="Calls that are timed.")
@click.option("--peak", "measured_peak", is_flag=True,
              help="Measure what the device can reach, for MFU, instead of looking it up; takes some seconds.")
@_tree("params", "macs", "flops", "fwd", "bwd", "time", "path")
def profile(model: str, **options: Any) -> None:
    """Count one call of a model and time more, module by module.

    MODULE:FACTORY is as for `distprof count`.
    """
    from distprof.launch.commands.count import profile as profile_model

    click.echo(profile_model(model, **options))


@commands.command()
@_of_model
@DEVICE
@click.option("--peer", default="deepspeed", show_default=True,
              help="deepspeed, fvcore or ptflops; need not be installed.")
def reconcile(model: str, **options: Any) -> None:
    """Explain, to the last unit, why another counter gives another total for a model.

    MODULE:FACTORY is as for `distprof count`.
    """
    from distprof.launch.commands.count import reconcile as reconcile_model

    click.echo(reconcile_model(model, **options))


@commands.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
              help="Where runs would go.")
@click.option("--peak", is_flag=True, help="Measure FLOP/s of products and bytes/s of a copy; takes some seconds.")
@JSON
def doctor(out: Path, *, as_json: bool, peak: bool) -> None:
    """Tell what this machine can and cannot record."""
    from distprof.launch.commands.doctor import doctor as examine

    text, healthy = examine(out, as_json=as_json, peak=peak)
    click.echo(text)
    sys.exit(0 if healthy else 1)


def main(argv: list[str] | None = None) -> None:
    """Entry point: runs a command; a user's mistake is one line on stderr."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = commands.main(arguments, prog_name="distprof", standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        if argv is None and arguments[:1] == ["merge"] and "multiprocessing" not in sys.modules:
            os._exit(code)  # all is written; to take the interpreter down takes as long as some traces
        sys.exit(code)
    except DistprofError as error:
        _die(str(error), error.exit_code, error)
    except click.ClickException as error:
        _die(error.format_message(), 2, error)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: not our error
        sys.exit(141)
    except OSError as error:
        _die(f"cannot write the result: {error.strerror}", 1, error)
    except Exception as error:  # noqa: BLE001 (a bug of ours; a traceback helps nobody who did not ask for it)
        message = f"{type(error).__name__}: {error}"
        _die(f"unexpected: {message}  hint: `distprof --debug ...` shows where; please report it", 1, error)


def _die(message: str, code: int, error: Exception) -> None:
    if os.environ.get("DISTPROF_DEBUG"):
        raise error
    click.echo(f"distprof: {message}", err=True)
    sys.exit(code)
