"""Records a job of the self-test as a user would, with `distprof run` in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.errors import in_one_line
from distprof.launch.final_merge import MERGE
from distprof.launch.job_arguments import ON_THIS_MACHINE, forgotten
from distprof.launch.selftest.evidence import Claim, Evidence, Row, planted_in

PATIENCE_S = 120
"""A job that takes longer, in seconds, is considered hanging."""
LAST_WORDS_S = 40
"""Time in seconds that torchrun gets to end ranks that do not end themselves."""
PLAIN_STEPS = 6
"""Number of steps after the last pass, without recording."""
REPLAY = "cuda::graph_replay"
"""An op that is correctly reported as uncounted in a job that replays a graph."""
MOST_SAID = 300
"""Maximum number of characters shown of a job's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job whose results are known."""

    name: str
    """Description of the job: the title of its table."""
    script: Path
    ranks: int
    plan: str
    steps: int
    """Number of steps in the plan; the job runs `PLAIN_STEPS` more."""
    claims: tuple[Claim, ...]
    arguments: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> str:
        """Name of its run directory, such as `host`."""
        return self.script.stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The result of recording a job."""

    evidence: Evidence | None
    row: Row
    """The claim that it was recorded and merged."""
    took_s: float


def recorded(job: Job, folder: Path) -> Recorded:
    """Runs, records and merges a job.

    Args:
        job: The job.
        folder: Gets the run directory and, beside it, the measurements of the ranks.

    Raises:
        Ended: A signal ends this process; it has also ended the job.
    """
    run, notes, began = folder / job.folder, folder / f"{job.folder}-planted", time.monotonic()
    notes.mkdir(parents=True)
    why, evidence = _run(job, run, notes), None
    try:
        planted = planted_in(notes)
        evidence = Evidence(run, planted) if planted else None
        why = why or _lacks(job, run, evidence)
    except Exception as error:  # noqa: BLE001 (it becomes a row)
        why = why or in_one_line(error)
    row = Row(job=job.name, claim="recorded and merged", expected=_whole(job), found=why or _whole(job), holds=not why)
    return Recorded(evidence=evidence, row=row, took_s=time.monotonic() - began)


def _whole(job: Job) -> str:
    return f"{job.ranks} of {job.ranks} ranks, {job.steps} steps"


def _lacks(job: Job, run: Path, evidence: Evidence | None) -> str | None:
    """Returns what is missing in the run of a job that succeeded; None if nothing."""
    if evidence is None or len(evidence.planted) != job.ranks:
        return f"{0 if evidence is None else len(evidence.planted)} of {job.ranks} ranks ended"
    if not (run / MERGED / SUMMARY_JSON).is_file():
        return "not merged"
    problems = [one for one in evidence.summary["problems"] if REPLAY not in str(one.get("detail"))]
    if problems:
        return f"problems: {problems}"[:MOST_SAID]
    steps = evidence.steps.group_by("rank").len()["len"].to_list()
    found = f"{len(steps)} of {job.ranks} ranks, {' or '.join(map(str, sorted({*steps})))} steps"
    return None if found == _whole(job) else found


def _run(job: Job, run: Path, notes: Path) -> str | None:
    """Runs a job; returns why it failed, None if it succeeded."""
    environ = dict(os.environ)
    for name in forgotten(environ):
        del environ[name]
    try:
        process = Popen(_command(job, run, notes), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, text=True, errors="backslashreplace",
                        env=environ | dict(job.environ))
    except OSError as error:
        return f"cannot start: {error.strerror}"
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {PATIENCE_S} s: {_last(_end(process))}"
    except BaseException:
        _end(process)
        raise
    (run.parent / f"{job.folder}.log").write_text(said)
    return f"exit code {process.returncode}: {_last(said)}" if process.returncode else None


def _command(job: Job, run: Path, notes: Path) -> list[str]:
    return [sys.executable, "-c", MERGE, "\n".join(sys.path), "run", "--out", os.fspath(run), *ON_THIS_MACHINE,
            f"--nproc-per-node={job.ranks}", f"--steps={job.plan}", os.fspath(job.script), "--notes", os.fspath(notes),
            f"--steps={job.steps + PLAIN_STEPS}", *job.arguments]


def _end(process: Popen[str]) -> str:
    """Ends a job as a user would, and returns its output."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=LAST_WORDS_S)[0]
    process.kill()
    return process.communicate()[0]


def _last(said: str) -> str:
    """Returns the line of the output that most likely has the reason: the last error of a rank, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] and ".elastic." not in line]
    return ((errors or lines or ["no output"])[-1])[:MOST_SAID]
