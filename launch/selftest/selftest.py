"""Records jobs in which everything is known, and compares what distprof says of them: a table, or JSON."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distprof.ending import ended_by_signals
from distprof.errors import OutputError, UsageError
from distprof.launch.selftest.judged import Row, rows
from distprof.launch.selftest.machine import jobs_here, machine
from distprof.launch.selftest.recording import Job, recorded
from distprof.reporters.page import Page
from distprof.storage.places import remote
from distprof.terminal import say
from distprof.units import counted

FORMAT = 1
"""Of the document; grows when a key changes its meaning or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that the self-test found."""

    machine: dict[str, Any]
    rows: list[Row]
    not_tested: list[str]
    took_s: float

    @property
    def holds(self) -> bool:
        """True where all claims do."""
        return all(row.holds for row in self.rows)


def selftest(*, on_cpu: bool = False, keep: Path | None = None) -> Result:
    """Records and judges every job that this machine can run.

    Args:
        on_cpu: Leave GPUs out.
        keep: A new or empty folder for the runs, which are otherwise removed.

    Raises:
        UsageError: `keep` is a URL.
        OutputError: `keep` is not empty, or no folder can be made.
        Ended: A signal ends this process; the jobs have ended, and their folder is gone.
    """
    began, about = time.monotonic(), machine()
    jobs, not_tested = jobs_here(len(about["cards"]), on_cpu=on_cpu, has_nccl="nccl" in about["backends"])
    found: list[Row] = []
    with ended_by_signals(), _folder(keep) as folder:
        for job in jobs:
            say(f"recording {job.name}")
            found += _judged(job, folder)
    return Result(machine=about, rows=found, not_tested=not_tested, took_s=time.monotonic() - began)


def _judged(job: Job, folder: Path) -> list[Row]:
    done = recorded(job, folder)
    if done.evidence is None:
        return [done.row]
    return [done.row, *rows(job.name, job.claims, done.evidence)]


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The one that was asked for, or one that is removed at the end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="distprof-selftest-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    if remote(keep) is not None:
        raise UsageError(f"--keep must be a local folder, not {keep}", hint="--keep runs/selftest")
    try:
        keep.mkdir(parents=True, exist_ok=True)
        taken = any(keep.iterdir())
    except OSError as error:
        raise OutputError(f"cannot make {keep}: {error.strerror}", hint="choose another --keep") from error
    if taken:
        raise OutputError(f"{keep} is not empty", hint="choose a new or empty folder for --keep")
    yield keep


def as_json(result: Result) -> str:
    """For a bug report."""
    return json.dumps({"format": FORMAT, "kind": "selftest", "holds": result.holds, "took_s": round(result.took_s, 1),
                       "machine": result.machine, "rows": [asdict(row) for row in result.rows],
                       "not_tested": result.not_tested}, indent=1)


def as_text(result: Result) -> str:
    """A table per job, what was not tested, and the answer."""
    page = Page()
    page.line(_about(result.machine))
    for job in dict.fromkeys(row.job for row in result.rows):
        page.line()
        page.line(job)
        page.table(("claim", "expected", "found", "holds"),
                   [(row.claim, row.expected, row.found, "yes" if row.holds else "NO") for row in result.rows
                    if row.job == job], left=4)
    page.line()
    for what in result.not_tested:
        page.line(f"not tested: {what}")
    page.line(_answer(result.rows, result.took_s))
    return page.text()


def _about(found: dict[str, Any]) -> str:
    cards = [f"{found['cards'].count(name)} x {name}" for name in dict.fromkeys(found["cards"])]
    words = [f"distprof {found['distprof']}", f"torch {found['torch']}", f"Python {found['python']}", *cards,
             f"driver {found['driver']}" if found["driver"] else "", found["cpu"]]
    return ", ".join(filter(None, words))


def _answer(found: Sequence[Row], took_s: float) -> str:
    failed = sum(not row.holds for row in found)
    if not failed:
        return f"All {len(found)} claims hold. It took {took_s:.0f} s."
    return (f"{failed} of {counted(len(found), 'claim')} {'does' if failed == 1 else 'do'} not hold. Please report "
            "this with the output of `distprof selftest --json`.")
