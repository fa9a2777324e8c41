"""The findings of a report as Markdown, for a pull request or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from distprof.merge.text.phrases import step_time_words
from distprof.merge.totals.step_time import step_time_of
from distprof.terminal import Shown, visible
from distprof.units import counted, percent, si

MARKS = {"bad": "❌", "warn": "⚠️", "note": "•", "good": "✅"}
_SPECIAL = re.compile(r"[\\`*_\[\]#|~@$]|:(?=\w+:)")
"""What marks up a text, mentions somebody or becomes a picture."""


def render(document: Mapping[str, Any]) -> str:
    """Headline, findings and a small table.

    Args:
        document: The document of the report.
    """
    return Shown.drawn("\n".join(_lines(document)))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    run = document["run"]
    yield f"### {plain(run['title'])}: {_size(document)}"
    yield ""
    for one in document["findings"]:
        yield f"- {MARKS[one['severity']]} {plain(one['text'])}"
        yield from (f"  - {plain(line)}" for line in (one["detail"] or "").splitlines())
    yield ""
    yield "| | |"
    yield "|---|---:|"
    yield from (f"| {name} | {plain(value)} |" for name, value in _table(document) if value is not None)


def plain(text: str) -> str:
    """A text that Markdown and HTML show as it is, in one line."""
    escaped = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", escaped)


def _size(document: Mapping[str, Any]) -> str:
    ranks = counted(document["world_size"], "rank")
    axes = " x ".join(f"{axis} {number}" for axis, number in (document["topology"] or {}).items())
    return plain(f"{ranks} = {axes}" if axes else ranks)


def _table(document: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    step, split, totals = document["step"], document["communication"], document["totals"]
    usual = step_time_of(step)
    yield "step", None if usual is None else step_time_words(usual)
    yield "samples/s", None if step["samples_per_second"] is None else si(step["samples_per_second"])
    yield "FLOP/s", None if step["flops_per_second"] is None else si(step["flops_per_second"], "FLOP/s")
    yield "MFU", None if step["mfu"] is None else percent(step["mfu"])
    if split is not None and split["waiting_ratio"] is not None:
        yield "waiting for other ranks", percent(split["waiting_ratio"])
        yield "moving data", percent(split["moving_ratio"])
    elif split is not None and split.get("exposed_ratio") is not None:
        yield "exposed communication", percent(split["exposed_ratio"])
    if totals is not None:
        yield "model parameters", si(totals["model"]["unique_params"] or totals["model"]["params"])
