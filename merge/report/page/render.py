"""Renders a report document as one HTML page, which loads nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from distprof.merge.report.page.section_list import sections
from distprof.merge.text.phrases import brief, capitalized, step_time_words, steps_words
from distprof.merge.text.rates import of_peak
from distprof.merge.totals.step_time import step_time_of
from distprof.terminal import visible
from distprof.units import counted, duration, percent, si, size, spans

Document = Mapping[str, Any]
Kind = Callable[[float], str]

FOLDER = Path(__file__).parent
SCRIPTS = ("format", "dom", "table", "bars", "heat_map", "lanes", "flame", "scatter", "curves", "whole_job", "views",
           "main")
"""Scripts in the order in which they are concatenated; the last one draws."""
SEVERITIES = {"bad": "problem", "warn": "warning", "note": "note", "good": "fine"}
MOST_HOSTS = 3
HASH = 12
_UNSAFE = re.compile("[<>&\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Matches what could end the script element, or changes the reading direction of the source."""


class Figure(NamedTuple):
    """One of the numbers at the top of the page."""

    label: str
    value: float
    kind: Kind


def page(document: Document) -> str:
    """Renders the page of a report document.

    Args:
        document: As `distprof report --json` prints it.
    """
    shown = list(sections(document))
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=document,
            data=_embedded(document),
            style=_text("style.css"),
            script=_script(),
            facts=list(_facts(document)),
            figures=list(_figures(document)),
            sections=shown,
            evidence={name: one for one in shown if not one.absent for name in (one.id, *one.needs)},
            not_recorded=[one for one in shown if one.absent],
            totals=list(_totals(document)),
            severities=SEVERITIES,
            longest_stage=_longest_stage(document),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"visible": visible, "sentence": _sentence, "capitalized": capitalized}
    environment.globals |= {
        "duration": duration,
        "percent": percent,
        "probability": _probability,
        "factor": "{:.2f} x".format,
    }
    return environment


def _sentence(text: str) -> Markup:
    """Formats a sentence of ours: names between backticks are set as code."""
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:  # a name contains a backtick
        return escape(visible(text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if number % 2 else part
                           for number, part in enumerate(parts))


def _text(name: str) -> Markup:
    return Markup((FOLDER / name).read_text("utf-8"))


def _script() -> Markup:
    """Returns all scripts in a scope of their own, so that nothing in them can be reached by name from outside."""
    scripts = Markup("\n").join(_text(f"scripts/{name}.js") for name in SCRIPTS)
    return Markup('(() => {\n"use strict";\n') + scripts + Markup("\n})();")


def _embedded(document: Document) -> Markup:
    """Returns the document as JSON that ends no script element and opens no comment, whatever names it contains."""
    text = _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", msgspec.json.encode(document).decode())
    return Markup(text)


def _facts(document: Document) -> Iterator[str]:
    run = document["run"]
    yield from _when(run)
    if steps := steps_words(document):
        yield steps
    yield counted(document["world_size"], "rank")
    if topology := document["topology"]:
        doubt = "" if document["topology_certain"] else " (uncertain)"
        yield " x ".join(f"{axis} {size}" for axis, size in topology.items()) + doubt
    if hosts := run["hosts"]:
        names = ", ".join(str(host["name"]) for host in hosts[:MOST_HOSTS])
        yield f"{counted(len(hosts), 'host')}: {names}{', ...' if len(hosts) > MOST_HOSTS else ''}"
    yield from dict.fromkeys(map(str, run["devices"]))
    yield from (f"{name} {version}" for name, version in run["versions"].items() if version and name != "distprof")
    if missing := document["missing_ranks"]:
        yield f"missing: ranks {spans(missing)}"


def _when(run: Document) -> Iterator[str]:
    """Yields when the job ran, how long, and its commit."""
    start_ns, end_ns = run["started_ns"], run["ended_ns"]
    if start_ns:
        yield f"{datetime.fromtimestamp(start_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
    if start_ns and end_ns and end_ns > start_ns:
        yield f"ran {_span(round((end_ns - start_ns) / 1e9))}"
    if run["git_commit"]:
        yield f"commit {run['git_commit'][:HASH]}"


def _span(seconds: int) -> str:
    """Returns a text like `2 h 5 min`, `41 s`."""
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def _figures(document: Document) -> Iterator[Figure]:
    """Returns the known ones of the numbers that people ask for first."""
    step, communication = document["step"] or {}, document["communication"] or {}
    usual = step_time_of(step)
    waiting, moving = communication.get("waiting_ratio"), communication.get("moving_ratio")
    exposed = communication.get("exposed_ratio") if waiting is None else None
    model = (document["totals"] or {}).get("model", {})
    found: list[tuple[str, Any, Kind]] = [
        (f"step time{'' if usual is None else step_time_words(usual).removeprefix(brief(usual.time_ns))}",
         None if usual is None else usual.time_ns, brief),
        ("MFU", step.get("mfu"), of_peak),
        ("whole job", step.get("flops_per_second"), partial(si, unit="FLOP/s")),
        ("samples per second", step.get("samples_per_second"), si),
        ("of a step waiting for other ranks", waiting, percent),
        ("of a step moving data", moving, percent),
        ("of a step exposed communication", exposed, percent),
        *_peaks(document),
        ("model parameters", model.get("unique_params") or model.get("params"), si),
    ]
    return (Figure(*one) for one in found if one[1] is not None)


def _peaks(document: Document) -> Iterator[tuple[str, Any, Kind]]:
    """Yields the peak memory of any rank, until its last recorded step."""
    rows = document["peak_memory"] or ()
    device = max((row["device_bytes"] or 0 for row in rows), default=0)
    host = max((row["host_bytes"] or 0 for row in rows), default=0)
    if device:
        yield "peak device memory of a rank", device, size
    elif host:
        yield "peak memory of a rank's process", host, size


QUANTITIES: tuple[tuple[str, str], ...] = (
    ("params", "parameters"),
    ("stored_params", "stored parameters"),
    ("fwd_macs", "forward MACs"),
    ("fwd_flops", "forward FLOPs"),
    ("bwd_flops", "backward FLOPs"),
    ("recompute_flops", "recomputed FLOPs"),
)


def _totals(document: Document) -> Iterator[tuple[str, Kind, Mapping[str, Any], Any, Any]]:
    """Yields the rows of the table of totals: per GPU, of the model, and with replicas counted once."""
    totals = document["totals"] or {"per_gpu": {}, "model": {}}
    for key, name in QUANTITIES:
        if per_gpu := totals["per_gpu"].get(key):
            yield (
                name,
                si,
                per_gpu,
                totals["model"].get(key),
                totals["model"].get("unique_params") if key == "params" else None,
            )


def _longest_stage(document: Document) -> float:
    stages = (document["pipeline"] or {}).get("stages") or []
    return max((stage["work_ns"] + stage["waiting_ns"] for stage in stages), default=1) or 1


def _probability(p_value: float) -> str:
    return "< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}"
