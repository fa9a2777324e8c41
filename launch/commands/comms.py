"""`distprof comms`: communication of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import (
    ATTEMPT,
    JSON,
    RUNS,
    SAME_HOST,
    STRICT,
    given_sizes,
    given_workers,
    mesh_sizes,
    worker_options,
)
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--op", metavar="all_reduce", help="Show only this op.")
@click.option("--group", metavar="NAME", help="Show only this process group, by name or description.")
@click.option("--step", type=int, metavar="N", help="Show only this step.")
@click.option("--slowest", type=click.IntRange(min=1), metavar="N",
              help="List the N longest collectives, including waiting.")
@click.option("--timeline", is_flag=True,
              help="Draw each collective on a time axis: arrival, waiting and transfer of every rank.")
@click.option("--matrix", is_flag=True, help="Show the bytes exchanged by each pair of ranks.")
@worker_options
@mesh_sizes
@SAME_HOST
@ATTEMPT
@JSON
@STRICT
def comms(runs: tuple[Path, ...], *, op: str | None, group: str | None, step: int | None, slowest: int | None,
          timeline: bool, matrix: bool, as_json: bool, strict: bool, attempt: int | None,
          workers: int | None, scheduler: str | None, **sizes: int | None) -> None:
    """Show communication: waiting, transfer, bandwidth, late ranks.

    RUN is a run directory, traces from torch.profiler, or dumps from torch's flight recorder. Several RUNs are run
    directories of one job whose hosts share no folder. --workers and --scheduler apply to traces and timelines; the
    collectives tables of a run directory are always read locally.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.comms import View
    from distprof.merge.commands.comms import comms as comms_of
    from distprof.merge.cost.choice import Choice
    from distprof.merge.run.rank_folders import of_attempt
    from distprof.merge.run.timelines import reading_in

    view = View(slowest=slowest, timeline=timeline, matrix=matrix, as_json=as_json)
    with reading_in(given_workers(workers, scheduler)):
        show(comms_of(*of_attempt(runs, attempt), choice=Choice(op=op, group=group, step=step), view=view,
                      strict=strict, sizes=given_sizes(sizes)))
