"""`distprof export`: execution traces for simulators and graph viewers."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, PLACE, RUNS, STRICT
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--out", required=True, type=PLACE, metavar="DIR",
              help="Folder for the files, PREFIX.RANK.et, one per rank.")
@click.option("--format", "form", default="chakra", show_default=True,
              type=click.Choice(["chakra", "linked", "replay", "dot", "graphml", "svg"]),
              help="chakra: for simulators and Chakra tools. linked: JSON for chakra_converter. replay: communication "
                   "for comm_replay, in rank-N.json. The others draw the graph.")
@click.option("--prefix", default=None, metavar="NAME", help="Prefix of the file names.  [default: the run's]")
@click.option("--target", default="astra-sim", type=click.Choice(["astra-sim", "replay"]), show_default=True,
              help="The program that will read it. For astra-sim, all communication counts as device work, including "
                   "gloo's; otherwise it is placed where it ran.")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@ATTEMPT
@STRICT
def export(runs: tuple[Path, ...], *, out: Path, form: str, prefix: str | None, target: str, ranks: tuple[int, ...],
           attempt: int | None, strict: bool) -> None:
    """Export what ran on each rank and its dependencies.

    RUN is a run directory, or execution traces from torch's observer together with torch.profiler timelines of the same
    ranks. Nodes have times, tensors and dependencies; communication has its type, size and process group.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.export import ExportOptions
    from distprof.merge.commands.export import export as export_of
    from distprof.merge.run.rank_folders import of_attempt

    options = ExportOptions(out=out, form=form, prefix=prefix, ranks=ranks,
                            target="replay" if target == "replay" else "astra-sim")
    show(export_of(*of_attempt(runs, attempt), options=options, strict=strict))
