"""`distprof stats`: totals, steps, modules and ranks of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.launch.options import ATTEMPT, JSON, RUNS, STRICT, given_sizes, mesh_sizes
from distprof.reporters.tree import SORTS, TreeView
from distprof.terminal import quoted_all, show


@click.command()
@RUNS
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Number of modules shown.  [default: 10; all with --modules]")
@click.option("--modules", is_flag=True, help="Show the modules as a tree.")
@click.option("--passes", is_flag=True, help="Show the step time of each pass, and so the cost of recording.")
@click.option("--depth", default=None, type=click.IntRange(min=0), metavar="N",
              help="With --modules, levels shown below the root.  [default: 3; all with --json]")
@click.option("--sort", default=None, type=click.Choice(list(SORTS)),
              help="With --modules, show the largest modules first: by parameters, MACs, FLOPs, forward time, "
                   "backward time or both times. path keeps the order of the model.  [default: path]")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, such as 1.2e12, for MFU.  [default: the published rate]")
@mesh_sizes
@ATTEMPT
@JSON
@STRICT
def stats(runs: tuple[Path, ...], *, as_json: bool, strict: bool, top: int | None, modules: bool, passes: bool,
          depth: int | None, sort: str | None, peak: float | None, attempt: int | None,
          **sizes: int | None) -> None:
    """Show totals, steps, the slowest modules and the ranks of RUN.

    Several RUNs are run directories of one job whose hosts share no folder.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.run.rank_folders import of_attempt

    runs = of_attempt(runs, attempt)
    from distprof.merge.commands.stats import stats as stats_of
    from distprof.merge.commands.stats import stats_by_module

    if modules and passes:
        raise UsageError("--modules and --passes cannot be combined")
    if modules:
        default = None if as_json else 3  # a program wants the whole tree
        view = TreeView(depth=default if depth is None else depth, top=top, sort=sort or "path")
        show(stats_by_module(*runs, view=view, as_json=as_json, strict=strict, sizes=given_sizes(sizes)))
        return
    if depth is not None or sort is not None:
        raise UsageError(f"{'--sort' if depth is None else '--depth'} needs --modules",
                         hint=f"distprof stats --modules {quoted_all(runs)}")
    show(stats_of(*runs, as_json=as_json, strict=strict, top=top or 10, peak=peak, sizes=given_sizes(sizes),
                  passes=passes))
