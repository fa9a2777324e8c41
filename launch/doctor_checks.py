"""The checks of `distprof doctor`: whether this machine can record, and what is limited."""

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
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from distprof.compiled import build
from distprof.compiled.library import is_built
from distprof.errors import LackingError
from distprof.needs import expect_linux, import_torch
from distprof.peaks.published import device_peaks
from distprof.process.identity import BOOT_ID
from distprof.reporters.page import Page
from distprof.system import LINUX
from distprof.units import counted, si

PACKAGES = ("numpy", "pyarrow", "polars", "msgspec", "isal", "click", "rich", "jinja2", "fsspec", "psutil")
"""Packages needed to read runs; recording also needs torch."""
READING = ("python", "packages")
"""Topics whose failure makes reading runs impossible."""
MIN_FREE_BYTES = 1 << 30
"""Free disk space in bytes below which a recording may not fit."""


class Finding(NamedTuple):
    """One line of the report."""

    topic: str
    level: str
    """`ok`, `warn` (works with limitations) or `fail` (cannot record)."""
    text: str


def examine(out: Path, *, as_json: bool, peak: bool = False) -> tuple[str, bool]:
    """Runs all checks.

    Args:
        out: Directory in which runs would be written.
        as_json: Returns JSON instead of text.
        peak: Also measures peak rates, which takes some seconds per device.

    Returns:
        The report, and False if recording is impossible.
    """
    findings = [finding for check in MACHINE_CHECKS for finding in check(out)]
    failed = [finding for finding in findings if finding.level == "fail"]
    healthy, reads = not failed, all(finding.topic not in READING for finding in failed)
    devices = _peaks(findings) if peak else []
    if as_json:
        found = {"healthy": healthy, "reads": reads, "findings": [finding._asdict() for finding in findings]}
        return json.dumps(found | ({"peaks": devices} if peak else {}), indent=1), healthy
    page = Page()
    for finding in findings:
        page.line(f"{finding.level:<5} {finding.topic:<10} {finding.text}")
    page.line()
    if devices:
        show_peaks(devices, page)
    elif peak:
        page.line("peak rates not measured: packages are missing")
        page.line()
    page.line(_verdict(failed, reads=reads))
    return page.text(), healthy


def _verdict(failed: list[Finding], *, reads: bool) -> str:
    if not failed:
        return "This machine can record. Next: distprof run --nproc-per-node 2 SCRIPT"
    reasons = "; ".join(finding.text.partition("  hint: ")[0] for finding in failed)
    able = "can read runs but cannot record" if reads else "can neither read runs nor record"
    return f"This machine {able}: {reasons}"


def _peaks(findings: list[Finding]) -> list[dict[str, Any]]:
    """Returns peak rates of the CPU and of the current CUDA device, if there is one, in FLOP/s and bytes/s."""
    if any(finding.level == "fail" and finding.topic in ("packages", "torch") for finding in findings):
        return []
    import torch

    from distprof.peaks.measured import measure_peak

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [with_published(asdict(measure_peak(device))) for device in devices]


def with_published(measured: dict[str, Any]) -> dict[str, Any]:
    """Returns the measured rates of a device together with the published ones."""
    row = device_peaks(measured["device"])
    published = None if row is None else {key: value for key, value in asdict(row).items() if key != "pattern"}
    return {"device": measured["device"], "num_threads": measured["num_threads"], "published": published,
            "measured": list(measured["rates"])}


def show_peaks(devices: list[dict[str, Any]], page: Page) -> None:
    """Adds one table per device to a page."""
    for device in devices:
        threads, published = device["num_threads"], device["published"]
        by = "" if threads is None else f", {counted(threads, 'thread of torch')}"
        page.line(f"peak rates of {device['device']}{by}")
        measured = {str(rate["dtype"] or rate["what"]): rate for rate in device["measured"]}
        known = {**published["flops_per_second"], "copy": published["bytes_per_second"]} if published else {}
        rows = []
        for name in dict.fromkeys((*measured, *known)):
            unit = "B/s" if name == "copy" else "FLOP/s"
            rate = measured.get(name, {"per_second": None, "how": "not measured"})
            rows.append((name, rate["how"], si(known.get(name), unit), si(rate["per_second"], unit)))
        page.table(("dense", "how measured", "published", "measured"), rows, left=2)
        page.line(f"published: {published['source']}, {published['year']}" if published else
                  "published: unknown for this device; set a rate for MFU with `distprof stats RUN --peak FLOP/s`")
        page.line()


def _python(_: Path) -> Iterator[Finding]:
    fits = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if fits else "fail",
                  f"{platform.python_version()} on {platform.machine()}" + ("" if fits else "; 3.11 is needed"))


def _system(_: Path) -> Iterator[Finding]:
    try:
        expect_linux("record")
    except LackingError as error:
        yield Finding("system", "fail", error.why)


def _packages(_: Path) -> Iterator[Finding]:
    found = {name: importlib.util.find_spec(name) is not None for name in PACKAGES}
    missing = [name for name, there in found.items() if not there]
    text = f"missing: {', '.join(missing)}  hint: pip install {' '.join(missing)}" if missing else ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    yield Finding("packages", "fail" if missing else "ok", text)


def _torch(_: Path) -> Iterator[Finding]:
    try:
        torch = import_torch("record")
    except LackingError as error:
        yield Finding("torch", "fail", f"{error.why}  hint: {error.hint}")
        return
    yield Finding("torch", "ok", f"{torch.__version__}, {counted(torch.get_num_threads(), 'thread')}")
    yield _backends()
    there = torch.profiler.kineto_available()
    yield Finding("timeline", "ok" if there else "fail",
                  "torch.profiler with Kineto" if there else "torch was built without Kineto: no timeline")


def _accelerators(_: Path) -> Iterator[Finding]:
    if all(importlib.util.find_spec(name) is not None for name in PACKAGES):
        with suppress(LackingError):
            import_torch("record")
            from distprof.launch.torch_checks import accelerator_lines

            yield from (Finding("device", level, text) for level, text in accelerator_lines())


def _torch_features(_: Path) -> Iterator[Finding]:
    if all(importlib.util.find_spec(name) is not None for name in PACKAGES):
        with suppress(LackingError):
            import_torch("record")
            from distprof.launch.torch_checks import lacking

            yield from (Finding("lacks", "warn", f"torch has {text}") for text in lacking())


def _backends() -> Finding:
    import torch.distributed as dist

    if not dist.is_available():
        return Finding("backend", "fail", "torch was built without torch.distributed")
    there = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    lacking = ", ".join(name for name, yes in there.items() if not yes)
    return Finding("backend", "ok" if there["gloo"] or there["nccl"] else "fail",
                   ", ".join(name for name, yes in there.items() if yes) + (f" (not {lacking})" if lacking else ""))


def _disk(out: Path) -> Iterator[Finding]:
    place = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    enough = free >= MIN_FREE_BYTES
    yield Finding("disk", "ok" if enough else "warn", f"{free / 1e9:.1f} GB free in {place}"
                  + ("" if enough else ": a timeline of many steps may not fit"))
    yield _writable(place)


def _writable(place: Path) -> Finding:
    if not place.is_dir():
        return Finding("write", "fail", f"{place} is a file  hint: choose another --out")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            begin = time.perf_counter()
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            speed = 1 / (time.perf_counter() - begin)
    except OSError as error:
        return Finding("write", "fail", f"cannot write in {place}: {error.strerror}  hint: choose another --out")
    return Finding("write", "ok", f"{place} is writable ({speed:.0f} MB/s for 1 MB with fsync)")


def _engine(_: Path) -> Iterator[Finding]:
    if importlib.util.find_spec("numpy") is None:
        return
    from distprof.merge.scan import engine  # it needs numpy

    yield Finding("merging", "ok" if engine.is_compiled() else "warn", engine.described())
    if LINUX and not is_built():
        yield Finding("recording", "warn",
                      "without the compiled library, a rank killed by a signal keeps only what it had already written, "
                      "and each rank uses 36 MB more  hint: install a C compiler, then run: python "
                      f"{build.__file__}")


def _clock(_: Path) -> Iterator[Finding]:
    there = BOOT_ID.exists()
    yield Finding("clock", "ok" if there else "warn",
                  "all ranks on this host share one clock" if there else
                  "no boot id, so distprof cannot tell which ranks share a host and measures the clock of each rank")


MACHINE_CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _python, _system, _packages, _torch, _accelerators, _torch_features, _disk, _clock, _engine)
