"""The checks of `distprof doctor`: whether this machine can record, and with which limits."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("pyarrow", "polars", "msgspec", "isal", "click", "rich")
MIN_FREE_BYTES = 1 << 30
"""Free disk below which a recording may not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    topic: str
    level: str
    """ok, warn (works with limits) or fail (cannot record)."""
    text: str


def examine(out: Path, *, as_json: bool, peak: bool = False) -> tuple[str, bool]:
    """Runs all checks.

    Args:
        out: Directory in which runs would be written.
        as_json: Return JSON instead of text.
        peak: Measure peak rates as well; takes some seconds per device.

    Returns:
        The report, and False if recording is impossible.
    """
    findings = [finding for check in MACHINE_CHECKS for finding in check(out)]
    healthy = all(finding.level != "fail" for finding in findings)
    devices = _peaks(findings) if peak else []
    if as_json:
        found = {"healthy": healthy, "findings": [asdict(each) for each in findings]}
        return json.dumps(found | ({"peaks": devices} if peak else {}), indent=1), healthy
    lines = [f"{finding.level:<5} {finding.topic:<10} {finding.text}" for finding in findings]
    end = "This machine can record. Next: distprof run --nproc-per-node 2 SCRIPT" if healthy else (
        "This machine cannot record; see the lines that start with fail.")
    return "\n".join([*lines, "", *_peak_lines(devices, wanted=peak), end]), healthy


def _peaks(findings: list[Finding]) -> list[dict[str, Any]]:
    if any(finding.level == "fail" for finding in findings if finding.topic in ("packages", "torch")):
        return []
    from distprof.launch.doctor_peak import measure_devices  # needs packages that may be missing

    return measure_devices()


def _peak_lines(devices: list[dict[str, Any]], *, wanted: bool) -> list[str]:
    if not devices:
        return ["peak rates were not measured: packages are missing", ""] if wanted else []
    from distprof.launch.doctor_peak import peak_text

    return [peak_text(devices)]


def _python(_: Path) -> Iterator[Finding]:
    fits = sys.version_info >= (3, 11)
    yield Finding(topic="python", level="ok" if fits else "fail",
                  text=f"{platform.python_version()} on {platform.machine()}" + ("" if fits else "; 3.11 is needed"))


def _packages(_: Path) -> Iterator[Finding]:
    found = {name: importlib.util.find_spec(name) is not None for name in PACKAGES}
    missing = [name for name, there in found.items() if not there]
    text = f"missing: {', '.join(missing)}  hint: pip install {' '.join(missing)}" if missing else ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    yield Finding(topic="packages", level="fail" if missing else "ok", text=text)


def _torch(_: Path) -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding(topic="torch", level="fail", text=f"cannot be imported: {error}  hint: pip install torch")
        return
    yield Finding(topic="torch", level="ok", text=f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Finding(topic="device", level="ok", text=f"{len(names)} CUDA: {', '.join(sorted(set(names)))}")
    else:
        yield Finding(topic="device", level="ok", text="no CUDA device: times are measured on the CPU")
    yield from _backends(torch)
    yield from _profiler(torch)


def _backends(torch: object) -> Iterator[Finding]:
    import torch.distributed as dist

    if not dist.is_available():
        yield Finding(topic="backend", level="fail", text="torch was built without torch.distributed")
        return
    there = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    lacking = ", ".join(name for name, yes in there.items() if not yes)
    yield Finding(topic="backend", level="ok" if there["gloo"] or there["nccl"] else "fail",
                  text=", ".join(name for name, yes in there.items() if yes) + (f" (not {lacking})" if lacking else ""))


def _profiler(_: object) -> Iterator[Finding]:
    import torch

    there = torch.profiler.kineto_available()
    yield Finding(topic="timeline", level="ok" if there else "fail",
                  text="torch.profiler with Kineto" if there else "torch was built without Kineto: no timeline")


def _disk(out: Path) -> Iterator[Finding]:
    place = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    yield Finding(topic="disk", level="ok" if free >= MIN_FREE_BYTES else "warn",
                  text=f"{free / 1e9:.1f} GB free in {place}" + (
                      "" if free >= MIN_FREE_BYTES else "; a timeline of many steps may not fit"))
    yield _writable(place)


def _writable(place: Path) -> Finding:
    if not place.is_dir():
        return Finding(topic="write", level="fail", text=f"{place} is a file  hint: choose another --out")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            begin = time.perf_counter()
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            speed = 1 / (time.perf_counter() - begin)
    except OSError as error:
        return Finding(topic="write", level="fail", text=f"cannot write in {place}: {error.strerror}  "
                       "hint: choose another --out")
    return Finding(topic="write", level="ok", text=f"{place} is writable ({speed:.0f} MB/s for 1 MB with fsync)")


def _engine(_: Path) -> Iterator[Finding]:
    if importlib.util.find_spec("numpy") is None:
        return
    from distprof.merge.scan.compiled.library import is_built  # it needs numpy

    built = is_built()
    yield Finding(topic="merging", level="ok" if built else "warn",
                  text="compiled engine" if built else "slower engine in Python: distprof was installed without a C "
                  "compiler, or its source changed since  hint: install a C compiler, then reinstall distprof")


def _clock(_: Path) -> Iterator[Finding]:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    there = boot_id.exists()
    yield Finding(topic="clock", level="ok" if there else "warn",
                  text="ranks of this host share one clock" if there else "no boot id, so ranks of one host cannot "
                  "be recognised: the clock of each rank is measured")


MACHINE_CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (_python, _packages, _torch, _disk, _clock, _engine)
