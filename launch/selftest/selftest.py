"""Records jobs whose results are known, and compares them with what distprof finds: as a table or JSON."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distprof.ending import ended_by_signals
from distprof.errors import OutputError, UsageError
from distprof.launch.selftest.device_claims import ALONE, AMONG_SEVERAL, SHARED
from distprof.launch.selftest.evidence import Row, rows
from distprof.launch.selftest.host_claims import SAID
from distprof.launch.selftest.recording import Job, recorded
from distprof.merge.scan.engine import described
from distprof.process.identity import cpu_name, versions
from distprof.reporters.page import Page
from distprof.storage.places import remote
from distprof.terminal import say
from distprof.units import counted

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
ASKED = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
PATIENCE_S = 10


def machine() -> dict[str, Any]:
    """Returns properties of the machine and software that affect the results; None if unknown. Imports torch."""
    import torch
    import torch.distributed as dist

    backends = [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if _has(dist, name)]
    return {
        **versions(), "system": platform.platform(), "cpu": cpu_name(), "cpus": os.cpu_count(),
        "merge_engine": described(), "backends": backends, "cards": cards(), "driver": driver() if cards() else None,
        "cuda": torch.version.cuda, "hip": torch.version.hip, "nccl": _nccl() if "nccl" in backends else None}


def cards() -> list[str]:
    """Returns the names of the GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def driver() -> str | None:
    """Returns the version of the GPU driver; None if unknown."""
    for file in DRIVERS:
        with suppress(OSError):
            text = file.read_text()
            found = re.search(r"\d+\.\d+(\.\d+)*", text)
            if found is not None:
                return found[0]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.check_output(ASKED, text=True, timeout=PATIENCE_S, stderr=subprocess.DEVNULL)
        return said.strip().partition("\n")[0] or None
    return None


def _has(dist: object, name: str) -> bool:
    is_there = getattr(dist, f"is_{name}_available", None)
    return is_there is not None and bool(is_there())


def _nccl() -> str | None:
    import torch

    with suppress(Exception):
        return ".".join(map(str, torch.cuda.nccl.version()))
    return None


JOBS = Path(__file__).with_name("jobs")
MOST_GPUS = 4
HOST_PLAN, HOST_STEPS = "wait=2,count=1,time=4,trace=12,arrivals=0", 19
"""Two ranks need about ten steps with a timeline before the lateness of one is significant."""
DEVICE_PLAN, DEVICE_STEPS = "wait=2,count=1,time=4,trace=6,arrivals=0", 13
NO_GPU = "no GPU"
ONE_GPU = "a late rank among several GPUs: there is only one"
NOT_ASKED = "GPUs: left out by --cpu"


def jobs_here(num_gpus: int, *, on_cpu: bool, has_nccl: bool) -> tuple[list[Job], list[str]]:
    """Returns the jobs for this machine.

    Args:
        num_gpus: Number of GPUs that torch sees.
        on_cpu: Uses no GPUs.
        has_nccl: Whether torch has NCCL or RCCL.

    Returns:
        The jobs, and what is not tested with the reason.
    """
    if on_cpu or not num_gpus:
        return [_on_cpus()], [NOT_ASKED if on_cpu else NO_GPU]
    if not has_nccl:
        return [_shared()], ["kernels, copies, streams and graphs: torch has no NCCL"]
    return [_shared(), _on_gpus(min(num_gpus, MOST_GPUS))], [ONE_GPU] if num_gpus == 1 else []


def _on_cpus() -> Job:
    return Job(name="2 ranks on CPUs, gloo", script=JOBS / "host.py", ranks=2, plan=HOST_PLAN, steps=HOST_STEPS,
               claims=SAID, arguments=("--device=cpu",), environ=(("CUDA_VISIBLE_DEVICES", ""),))


def _shared() -> Job:
    return Job(name="2 ranks on one GPU, gloo", script=JOBS / "host.py", ranks=2, plan=HOST_PLAN, steps=HOST_STEPS,
               claims=(*SAID, *SHARED), arguments=("--device=cuda:0",))


def _on_gpus(ranks: int) -> Job:
    if ranks == 1:
        return Job(name="1 rank on a GPU, NCCL", script=JOBS / "device.py", ranks=1, plan=DEVICE_PLAN,
                   steps=DEVICE_STEPS, claims=ALONE)
    return Job(name=f"{ranks} ranks with a GPU each, NCCL", script=JOBS / "device.py", ranks=ranks, plan=HOST_PLAN,
               steps=HOST_STEPS, claims=(*ALONE, *AMONG_SEVERAL))


FORMAT = 1
"""Version of the JSON document; increases when a key changes its meaning or is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The results of the self-test."""

    machine: dict[str, Any]
    rows: list[Row]
    not_tested: list[str]
    took_s: float

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(row.holds for row in self.rows)


def selftest(*, on_cpu: bool = False, keep: Path | None = None) -> Result:
    """Records and judges every job that this machine can run.

    Args:
        on_cpu: Uses no GPUs.
        keep: A new or empty folder for the runs; None: they are removed.

    Raises:
        UsageError: `keep` is a URL.
        OutputError: `keep` is not empty, or a folder cannot be created.
        Ended: A signal ends this process; the jobs have ended, and a temporary folder is removed.
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
    """Yields the requested folder, or one that is removed at the end."""
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
    """Returns the results as JSON, for a bug report."""
    return json.dumps({"format": FORMAT, "kind": "selftest", "holds": result.holds, "took_s": round(result.took_s, 1),
                       "machine": result.machine, "rows": [asdict(row) for row in result.rows],
                       "not_tested": result.not_tested}, indent=1)


def as_text(result: Result) -> str:
    """Returns a table per job, what was not tested, and the conclusion as text."""
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
