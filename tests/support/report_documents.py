"""Hand-made report documents: a job of two ranks, the second of which is late."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parent / "data" / "report_document.json"
HOSTILE = "</script><script>alert(1)</script><!--\"'&\n\u202e\u2028 {{ 7 * 7 }}"
SECTIONS = (
    "totals",
    "step",
    "communication",
    "whole_job",
    "step_parts",
    "heat_map",
    "collectives",
    "collective_kinds",
    "bandwidths",
    "blame",
    "hang",
    "modules",
    "operators",
    "memory",
    "pipeline",
    "waits",
    "script_lines",
    "peak_memory",
    "steps",
    "critical_path",
    "clock",
)


def document() -> dict[str, Any]:
    """Returns a document with data in every section."""
    made: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return made


def bare_document() -> dict[str, Any]:
    """Returns a document without data except its ranks; two sections have reasons why they are absent."""
    absent = {"step_parts": "no steps were recorded", "modules": "no modules were recorded"}
    return document() | dict.fromkeys(SECTIONS) | {"absent": absent, "findings": []}


def with_names(value: Any, name: str) -> Any:
    """Returns the document with all external names replaced."""
    kept = {"source", "parts", "section", "severity", "columns", "pass", "method", "kind"}
    if isinstance(value, dict):
        return {key: each if key in kept else with_names(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [with_names(each, name) for each in value]
    return name if isinstance(value, str) else value


def numbers(value: Any) -> Iterator[float]:
    """Yields all numbers in a document."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def differences(document: dict[str, Any]) -> set[float]:
    """Returns waiting and transfer times of collectives: arrival to last arrival, and last arrival to end."""
    parts = [step["parts"] for step in document["collectives"]["steps"]]
    pairs = [(part[start][row], part[end][row]) for part in parts
             for start, end in (("arrival_ns", "full_ns"), ("full_ns", "end_ns")) for row in range(len(part["call"]))]
    return {float(end - start) for start, end in pairs if start is not None and end is not None}


def in_units(document: dict[str, Any]) -> set[float]:
    """Returns the numbers of the picture of the whole job, which are stored in units, in ns."""
    job = document.get("whole_job") or {}
    return {value * job["unit_ns"] for value in numbers(job)} if job else set()
