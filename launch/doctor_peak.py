"""`distprof doctor --peak`: published and measured peak rates of the devices of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from distprof.peaks.published import DevicePeaks, device_peaks
from distprof.reporters.page import Page
from distprof.units import si


def measure_devices() -> list[dict[str, Any]]:
    """Rates of the CPU and, if there is one, of the current CUDA device, in FLOP/s and bytes/s."""
    import torch

    from distprof.peaks.measured import measure_peak

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [_with_published(asdict(measure_peak(device))) for device in devices]


def _with_published(measured: dict[str, Any]) -> dict[str, Any]:
    row = device_peaks(measured["device"])
    return {"device": measured["device"], "num_threads": measured["num_threads"],
            "published": _published(row) if row is not None else None, "measured": list(measured["rates"])}


def _published(row: DevicePeaks) -> dict[str, Any]:
    return {"flops_per_second": dict(row.flops_per_second), "bytes_per_second": row.bytes_per_second,
            "source": row.source, "year": row.year}


def peak_text(devices: list[dict[str, Any]]) -> str:
    """One table per device."""
    page = Page()
    for device in devices:
        _device(device, page)
    return page.text()


def _device(device: dict[str, Any], page: Page) -> None:
    threads, published = device["num_threads"], device["published"]
    page.line(f"peak rates of {device['device']}" + ("" if threads is None else f", {threads} threads of torch"))
    measured = {_key(rate): rate for rate in device["measured"]}
    known = {**published["flops_per_second"], "copy": published["bytes_per_second"]} if published else {}
    rows = []
    for name in dict.fromkeys((*measured, *known)):
        unit = "B/s" if name == "copy" else "FLOP/s"
        rate = measured.get(name, {"per_second": None, "how": "not measured"})
        rows.append((name, rate["how"], si(known.get(name), unit), si(rate["per_second"], unit)))
    page.table(("dense", "how measured", "published", "measured"), rows, left=2)
    page.line(f"published: {published['source']}, {published['year']}" if published else
              "published: unknown for this device; `distprof stats RUN --peak FLOP/s` sets a rate for MFU")
    page.line()


def _key(rate: dict[str, Any]) -> str:
    return str(rate["dtype"] or rate["what"])
