"""Records a job in which one layer of one rank is late, and shows that distprof names both."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.ending import ended_by_signals
from distprof.errors import DataError, UsageError
from distprof.launch.job import run_job
from distprof.launch.job_arguments import ON_THIS_MACHINE, forgotten
from distprof.storage.places import remote
from distprof.terminal import quoted, show

SCRIPT = Path(__file__).with_name("demo.py")
LATE_RANK, LATE_LAYER, LATE_MS = 2, 1, 90
PLAN, STEPS = "wait=2,count=1,time=3,trace=16,arrivals=0", 24
"""Every step that counts has a timeline: from the arrivals pass, what a layer takes can only be estimated."""
MODULE = f"layers.{LATE_LAYER}.mlp"
MOST = 64
"""Ranks: each takes as much memory as torch does."""
LOGGERS = ("torch.distributed.elastic.agent.server.api", "torch.distributed.elastic.multiprocessing.api")
"""Of torchrun: they warn of Ctrl-C, and of each rank that it ends."""
NEXT = "distprof run --nproc-per-node 4 train.py"


def run_demo(num_ranks: int, out: Path | None, *, force: bool) -> int:
    """Records the job, writes its report, and prints who is late and why.

    Returns:
        The exit code of the job, as that of `distprof run`; 1 where it was not merged.

    Raises:
        UsageError: There are too few ranks, or too many; or `out` is a URL.
        OutputError: The run directory or the report cannot be written.
        DataError: Another rank or layer was named, or none.
    """
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
    with ended_by_signals():  # torchrun has left handlers of its own
        show_answer(merged[0], late)
    return 0


def _prepare_environment() -> None:
    """Forgets what other jobs have set, and keeps this one on the CPUs."""
    for name in forgotten(os.environ):
        del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda record: record.levelno > logging.WARNING)


def _arguments(num_ranks: int, late: int, out: Path | None, *, force: bool) -> list[str]:
    """Those of `distprof run`."""
    return [*([f"--out={out}"] if out is not None else []), *(["--force"] if force else []), *ON_THIS_MACHINE,
            f"--nproc-per-node={num_ranks}", f"--steps={PLAN}", str(SCRIPT),
            f"--steps={STEPS}", f"--late-rank={late}", f"--late-layer={LATE_LAYER}", f"--late-ms={LATE_MS}"]


def show_answer(run: Path, late: int) -> None:
    """Writes the report; prints the finding, what fixing it gains, and where the report is.

    Args:
        run: It is merged.
        late: The rank that is late in it.

    Raises:
        OutputError: The report cannot be written.
        DataError: Another rank or layer was named, or none.
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
    """The ranks that are named, each with the place of its largest cause."""
    from distprof.merge.blame.culprits import Culprit

    culprits = msgspec.convert(communication["culprits"], list[Culprit])
    return [(one.rank, one.causes[0].where if one.causes else None) for one in culprits if one.certain]
