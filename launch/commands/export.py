"""`distprof export`: execution traces for simulators and graph viewers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.errors import IncompleteError
from distprof.files import told
from distprof.launch.options import ATTEMPT, PLACE, RUNS, STRICT, given_runs
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.contract.problems import Remark
    from distprof.merge.execution.process_groups import Target


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
    show(_exported(given_runs(runs, attempt), out=out, form=form, prefix=prefix,
                   target="replay" if target == "replay" else "astra-sim", ranks=ranks, strict=strict))


def _exported(runs: Sequence[Path], *, out: Path, form: str, prefix: str | None, target: Target,
              ranks: Sequence[int], strict: bool) -> str:
    """Writes the execution traces of a run.

    Returns:
        Text about what was written.

    Raises:
        DataError: There is nothing to export.
        UsageError: There is no such rank.
        OutputError: A file cannot be written.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.cost.measured_run import measured_run
    from distprof.merge.execution.formats.exported import chosen_ranks, export_for_replay, export_ranks
    from distprof.merge.execution.rank_execution import sources_of
    from distprof.merge.run.open_run import open_run
    from distprof.merge.text.export import ExportShown, lost, render
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.reporters.page import Page

    run = open_run(*runs, untimed=True)
    sources = sources_of(run)
    problems = [*run.problems, *sources.problems]
    fail_if_incomplete(problems, strict=strict)
    chosen = chosen_ranks(run, sources, ranks)
    clock, lacking = measured_run(run, collectives=False).clock, None
    with told(out):
        out.mkdir(parents=True, exist_ok=True)
    if form == "replay":
        exported, lacking = export_for_replay(chosen, sources, out, run.world_size)
    else:
        exported = list(export_ranks(run, chosen, sources, clock, target, form, out / (prefix or run.run_id)))
    about = ExportShown(
        exported=exported, step=sources.step, aligned=clock.aligned, lacking=lacking,
        left_out=sorted({one.number for one in run.ranks} - {one.number for one in sources.ranks}))
    if strict and (found := lost(about)):
        raise IncompleteError(f"incomplete: {'; '.join(found)}", hint="without --strict, this exits with 0")
    remarks = [one for one in (*run.remarks, *sources.remarks) if not _is_of_pairs(one)]
    return render(remarks, problems, about, Page())


def _is_of_pairs(one: Remark) -> bool:
    """Returns whether a remark of `open_run` is about pairs of execution traces and timelines; `sources_of`, which
    looks for these pairs, makes more precise remarks."""
    from distprof.contract.problems import ExecutionTraces, FilesLeftOut
    from distprof.merge.run.traces.trace_head import EXECUTION_TRACE

    return isinstance(one, ExecutionTraces) or (isinstance(one, FilesLeftOut) and one.instead == EXECUTION_TRACE)
