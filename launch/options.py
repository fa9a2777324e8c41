"""Arguments and options that several commands share, and their tab completion.

Imports neither torch nor polars.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from distprof.contract.mesh import GIVEN_AXES, MESH_AXES
from distprof.errors import UsageError
from distprof.files import told, write_whole
from distprof.launch.run_paths import of_hosts
from distprof.storage.credentials import is_url
from distprof.storage.places import place

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.workers.choice import Workers


USUAL_OF_TORCHRUN = (
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--standalone", "--rdzv-backend",
    "--rdzv-endpoint", "--rdzv-id", "--max-restarts", "--module", "--log-dir", "--redirects", "--tee")
"""Flags of torchrun for completion; getting its own list would require importing torch."""


def run_directories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes runs in the working directory; files and folders if no run matches."""
    from distprof.launch.what_next import runs_in

    runs = sorted(str(run) for run in runs_in(Path()))
    found = [CompletionItem(run) for run in runs if run.startswith(incomplete)]
    return found or files(context, parameter, incomplete)


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Lets the shell complete files and folders."""
    return [CompletionItem(incomplete, type="file")]


class CompletedRun(click.Command):
    """The command `distprof run`, which completes flags that click does not know."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from distprof.launch.job_arguments import add_recording_flags

        ours = argparse.ArgumentParser()
        add_recording_flags(ours)
        flags = {flag: action.help for action in ours._actions for flag in action.option_strings}
        flags |= dict.fromkeys(USUAL_OF_TORCHRUN, "as torchrun's")
        return [CompletionItem(flag, help=text) for flag, text in flags.items() if flag.startswith(incomplete)]


class Place(click.Path):
    """A local path or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return place(value) if isinstance(value, str) and is_url(value) else super().convert(value, param, ctx)


PLACE = Place(path_type=Path)
TITLES = {axis.name: axis.title for axis in MESH_AXES}
RUNS = click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PLACE, shell_complete=run_directories,
                      callback=of_hosts)
ATTEMPT = click.option("--attempt", type=click.IntRange(min=0), metavar="N",
                       help="For a job that torchrun restarted: the attempt to read, from 0.  [default: the last one]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
STRICT = click.option("--strict", is_flag=True, help="Exit with code 3 if any data is missing.")
_WORKERS = (
    click.option("--workers", type=click.IntRange(min=1), metavar="N",
                 help="Number of local worker processes that read traces.  [default: threads, one per core]"),
    click.option("--scheduler", metavar="ADDRESS",
                 help="Read traces on the dask cluster with this scheduler, like tcp://host:8786."),
)
COUNT_DEVICE = click.option(
    "--device", default="meta", type=click.Choice(["meta", "cpu"]), show_default=True,
    help="Device on which the model is built and called. meta needs no memory and runs attention as plain matrix "
         "products.")


def mesh_sizes(command: Callable[..., None]) -> Any:
    """Adds --pp, --dp, --cp, --ep and --tp; the command gets each as an int or None, see `given_sizes`."""
    return _with(command, [
        click.option(f"--{axis}", default=None, type=click.IntRange(min=1), metavar="N",
                     help=f"{TITLES[axis].replace(' ', '-').capitalize()} size, if the run does not record it.")
        for axis in GIVEN_AXES])


def _on_one_host(context: click.Context, _: click.Parameter, value: object) -> None:
    if value:
        from distprof.merge.clock.choose import on_one_host

        context.with_resource(on_one_host())


SAME_HOST = click.option("--same-host", is_flag=True, expose_value=False, callback=_on_one_host,
                         help="All ranks of these foreign traces ran on one host: compare their times directly. For "
                              "traces whose host names are missing or are those of containers.")


def _in_unit(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        from distprof.merge.run.traces.trace_head import times_in

        context.with_resource(times_in(value))


TIME_UNIT = click.option("--time-unit", type=click.Choice(["us", "ns"]), expose_value=False, callback=_in_unit,
                         help="Unit of the times in foreign traces.  [default: us; ns where times in us would be after "
                              "the year 2262]")


def worker_options(command: Callable[..., None]) -> Any:
    """Adds --workers and --scheduler; see `given_workers`."""
    return _with(command, _WORKERS)


def given_workers(processes: int | None, scheduler: str | None) -> Workers:
    """Returns the workers that the two options select.

    Raises:
        UsageError: Both are set.
    """
    from distprof.merge.workers.choice import Workers

    if processes is not None and scheduler is not None:
        raise UsageError("--workers and --scheduler cannot be combined",
                         hint="a cluster uses the workers started with dask worker")
    return Workers(processes=processes, scheduler=scheduler)


def given_sizes(sizes: Mapping[str, int | None]) -> dict[str, int]:
    """Returns axis -> size of the axes that are not None."""
    return {axis: size for axis, size in sizes.items() if size is not None}


def model_arguments(command: Callable[..., None]) -> Any:
    """Adds MODULE:FACTORY and the options for its inputs."""
    return _with(command, (
        click.argument("model", metavar="MODULE:FACTORY"),
        click.option("--input-shape", "shapes", multiple=True, metavar="1,3,224,224",
                     help="Shape of an input tensor; repeat for each positional input. Not needed if the factory "
                          "returns inputs."),
        click.option("--dtype", "dtypes", multiple=True, metavar="TYPE",
                     help="Element type of the inputs; once for all or once per --input-shape.  [default: float32]"),
    ))


def module_tree(*sorts: str) -> Callable[[Callable[..., None]], Any]:
    """Returns a decorator that adds the options for trees of modules; `sorts` are the choices of --sort."""
    return lambda command: _with(command, (
        click.option("--depth", default=3, type=click.IntRange(min=0), metavar="N", show_default=True,
                     help="Levels shown below the root."),
        click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
                     help="Number of modules shown.  [default: all]"),
        click.option("--sort", default="path", type=click.Choice(sorts), show_default=True,
                     help="Show the largest modules first by this column; path keeps the order of the model."),
    ))


def _with(command: object, options: Sequence[Callable[[Any], Any]]) -> Any:
    for option in reversed(options):
        command = option(command)
    return command


def given_runs(runs: Sequence[Path], attempt: int | None) -> tuple[Path, ...]:
    """Returns the directories to read. Call it at the start of a command, before numpy and Arrow are imported.

    Raises:
        UsageError: The attempt does not exist.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.run.rank_folders import of_attempt

    return of_attempt(runs, attempt)


def check_rates(**rates: float | None) -> None:
    """Checks rates of the user that replace published ones; keywords are the names of their options.

    Raises:
        UsageError: One is not a positive number.
    """
    for option, rate in rates.items():
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"--{option} must be positive, not {rate}")


def check_new(path: Path | None) -> None:
    """Checks the file of `--parquet` before the work starts.

    Raises:
        UsageError: The file exists.
    """
    if path is not None and path.exists():
        raise UsageError(f"--parquet {path} exists already")


def write_parquet(table: pl.DataFrame, path: Path) -> None:
    """Writes a table to the file of `--parquet`.

    Raises:
        UsageError: The file exists.
        OutputError: It cannot be written.
    """
    check_new(path)
    with told(path):
        write_whole(path, table.write_parquet)


def as_csv(table: pl.DataFrame) -> str:
    """Returns a table as CSV with a header and without a newline at the end."""
    return table.write_csv().removesuffix("\n")
