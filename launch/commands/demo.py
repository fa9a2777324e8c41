"""`distprof demo`: records a small job with a late rank, and finds it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.ending import ended_by_signals
from distprof.errors import DataError, UsageError
from distprof.launch.options import PLACE
from distprof.needs import expect_linux, import_torch
from distprof.storage.places import remote
from distprof.terminal import quoted, show

SCRIPT = Path(__file__).parents[1] / "demo" / "demo.py"
LATE_RANK, LATE_LAYER, LATE_MS = 2, 1, 90
PLAN, STEPS = "wait=2,count=1,time=3,trace=16,arrivals=0", 24
"""The plan of passes and the number of steps. All steps that are analysed have a timeline, because the arrivals pass
would only allow an estimate of a layer's time."""
MODULE = f"layers.{LATE_LAYER}.mlp"
MOST = 64
"""Largest number of ranks: each process needs memory for its own torch."""
LOGGERS = ("torch.distributed.elastic.agent.server.api", "torch.distributed.elastic.multiprocessing.api")
"""Loggers of torchrun whose warnings are hidden: about Ctrl-C, and about each rank that torchrun ends."""
NEXT = "distprof run --nproc-per-node 4 train.py"


@click.command()
@click.option("--ranks", default=4, type=int, metavar="N", show_default=True, help="Number of ranks, 2 or more.")
@click.option("--out", default=None, type=PLACE, metavar="DIR",
              help="Run directory, new or empty.  [default: runs/demo-<time>]")
@click.option("--force", is_flag=True, help="Replace the run in --out.")
def demo(*, ranks: int, out: Path | None, force: bool) -> None:
    """Record a small job with a late rank, and find it.

    The job trains a small transformer on the CPUs of this machine, with one process per rank. One layer of rank 2 (rank
    1 if there are only two) sleeps in every step. The last lines show the rank and the layer, what fixing it would
    gain, and the report.
    """
    expect_linux("record")
    import_torch("record")
    sys.exit(_run(ranks, out, force=force))


def _run(num_ranks: int, out: Path | None, *, force: bool) -> int:
    """Records the job, writes its report, and prints who is late and why.

    Returns:
        The exit code of the job, as of `distprof run`; 1 if the job succeeded but was not merged.

    Raises:
        UsageError: There are too few or too many ranks, or `out` is a URL.
        OutputError: The run directory or the report cannot be written.
        DataError: The answer names another rank or layer, or none.
    """
    from distprof.launch.job import run_job

    if not 2 <= num_ranks <= MOST:
        raise UsageError(f"--ranks must be from 2 to {MOST}, not {num_ranks}",
                         hint="a rank is late only compared with others: --ranks 4" if num_ranks < 2 else "--ranks 4")
    if out is not None and remote(out) is not None:
        raise UsageError(f"--out must be a local folder, not {out}",
                         hint="use distprof upload RUN URL to send a run elsewhere")
    _prepare_environment()
    late, merged = min(LATE_RANK, num_ranks - 1), list[Path]()
    code = run_job(_arguments(num_ranks, late, out, force=force), after_merge=merged.append)
    if code or not merged:
        return code or 1
    with ended_by_signals():  # torchrun has left its own signal handlers installed
        show_answer(merged[0], late)
    return 0


def _prepare_environment() -> None:
    """Removes environment variables that belong to other jobs, and hides GPUs and torchrun's warnings."""
    import logging

    from distprof.launch.job_arguments import forgotten

    for name in forgotten(os.environ):
        del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda record: record.levelno > logging.WARNING)


def _arguments(num_ranks: int, late: int, out: Path | None, *, force: bool) -> list[str]:
    """Returns the arguments for `distprof run`."""
    from distprof.launch.job_arguments import ON_THIS_MACHINE

    return [*([f"--out={out}"] if out is not None else []), *(["--force"] if force else []), *ON_THIS_MACHINE,
            f"--nproc-per-node={num_ranks}", f"--steps={PLAN}", str(SCRIPT),
            f"--steps={STEPS}", f"--late-rank={late}", f"--late-layer={LATE_LAYER}", f"--late-ms={LATE_MS}"]


def show_answer(run: Path, late: int) -> None:
    """Writes the report; prints the finding, the gain from fixing it, and the path of the report.

    Args:
        run: A merged run directory of the demo.
        late: The rank that was made late.

    Raises:
        OutputError: The report cannot be written.
        DataError: The answer names another rank or layer, or none.
    """
    from distprof.launch.commands.report import write_report
    from distprof.merge.text.communication.culprits import lines_of_summary
    from distprof.merge.totals.step_time import step_time_of

    page = write_report(run)
    summary = json.loads((run / MERGED / SUMMARY_JSON).read_text())
    found = summary["communication"] or {"culprits": [], "blind": "no collective"}
    lines = lines_of_summary({**found, "passes": ()}, summary["ranks"], missing=summary["missing_ranks"], num_causes=1,
                             usual=step_time_of(summary["step"]))
    show("\n".join((*lines, f"report: {quoted(page)}", f"Next: {NEXT}")))
    if _named(found) != [(late, MODULE)]:
        raise DataError(f"the answer should name rank {late} and {MODULE}, and no other rank",
                        hint="this machine may be busy with other programs: try again, or with --ranks 2")


def _named(communication: Mapping[str, Any]) -> list[tuple[int, str | None]]:
    """Returns the ranks that are certainly blamed, each with the location of its largest cause."""
    import msgspec

    from distprof.merge.blame.culprits import Culprit

    culprits = msgspec.convert(communication["culprits"], list[Culprit])
    return [(one.rank, one.causes[0].where if one.causes else None) for one in culprits if one.certain]
