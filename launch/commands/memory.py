"""`distprof memory`: allocations of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, PLACE, RUNS, STRICT
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--by", "by", multiple=True, metavar="KEY",
              help="Group by category, module, class, op, phase, rank or device. Can be repeated.  [default: "
                   "category]  For memory snapshots: line, stack, stream, rank or device.  [default: line]")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows and tensors shown.  [default: 20 and 10]")
@click.option("--lifetimes", is_flag=True,
              help="Show the tensors that stayed allocated longest after their last use.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--parquet", default=None, type=PLACE, metavar="FILE",
              help="Also write all allocations to a new Parquet file.")
@ATTEMPT
@STRICT
def memory(runs: tuple[Path, ...], *, by: tuple[str, ...], ranks: tuple[int, ...], top: int | None, form: str | None,
           lifetimes: bool, parquet: Path | None, attempt: int | None, strict: bool) -> None:
    """Show what holds the memory at the peak.

    RUN is a run directory with a memory pass (--steps memory=1), traces from torch.profiler with profile_memory=True,
    or snapshots from torch.cuda.memory._dump_snapshot, one per rank. Snapshots are read as plain data: no code in them
    is run.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.memory import MemoryView
    from distprof.merge.commands.memory import memory as memory_of
    from distprof.merge.run.rank_folders import of_attempt

    view = MemoryView(by=by, ranks=ranks, top=top, form=form or "text", parquet=parquet,
                      lifetimes=lifetimes)
    show(memory_of(*of_attempt(runs, attempt), view=view, strict=strict))
