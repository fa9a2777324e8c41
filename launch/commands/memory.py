"""`distprof memory`: allocations of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, RUNS, STRICT
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--by", "by", multiple=True, metavar="KEY",
              help="Add up what has the same category, module, class, op, phase, rank or device; several of these keep "
                   "more apart.  [default: category]")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows and tensors shown.  [default: 20 and 10]")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--parquet", default=None, type=click.Path(path_type=Path), metavar="FILE",
              help="Write all allocations to a new Parquet file as well.")
@ATTEMPT
@STRICT
def memory(runs: tuple[Path, ...], *, by: tuple[str, ...], ranks: tuple[int, ...], top: int | None, form: str | None,
           parquet: Path | None, attempt: int | None, strict: bool) -> None:
    """Show who holds the memory at the peak.

    RUN is a run directory with a memory pass (--steps memory=1), or traces that torch.profiler wrote with
    profile_memory=True.
    """
    from distprof.launch.merge_memory import reuse_memory

    reuse_memory()
    from distprof.merge.commands.memory import MemoryView
    from distprof.merge.commands.memory import memory as memory_of
    from distprof.merge.run.attempts import of_attempt

    view = MemoryView(by=by or ("category",), ranks=ranks, top=top, form=form or "text", parquet=parquet)
    show(memory_of(*of_attempt(runs, attempt), view=view, strict=strict))
