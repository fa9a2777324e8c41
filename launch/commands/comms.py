"""The `comms` command: options come in, what ranks told each other and who was waited for is printed."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.commands.merge import STRICT


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--op", metavar="all_reduce", help="Only this op.")
@click.option("--group", metavar="NAME", help="Only this process group: its name or description.")
@click.option("--step", type=int, metavar="N", help="Only this step.")
@click.option("--slowest", type=click.IntRange(min=1), metavar="N",
              help="A table of the collectives that took longest, waiting included.")
@click.option("--timeline", is_flag=True,
              help="Draw each collective: one row per rank on a common time axis, with arrival, waiting and moving.")
@click.option("--matrix", is_flag=True, help="Bytes that ranks sent each other.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@STRICT
def comms(run: Path, *, op: str | None, group: str | None, step: int | None, slowest: int | None, timeline: bool,
          matrix: bool, as_json: bool, strict: bool) -> None:
    """Print what ranks of RUN told each other, what that cost, who was waited for and why.

    RUN is a run directory, or traces that torch.profiler wrote.
    """
    from distprof.launch.memory import reuse_memory

    reuse_memory()
    from distprof.merge.commands.comms import View
    from distprof.merge.commands.comms import comms as report
    from distprof.merge.cost.choice import Choice

    view = View(slowest=slowest, timeline=timeline, matrix=matrix, as_json=as_json)
    click.echo(report(run, Choice(op=op, group=group, step=step), view, strict=strict))
