"""Formats the findings of a report: as Markdown for a pull request or a chat, and as data for scripts or agents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from distprof.merge.text.phrases import cut, step_time_words
from distprof.merge.totals.step_time import step_time_of
from distprof.terminal import Shown, visible
from distprof.units import counted, percent, si

MARKS = {"bad": "❌", "warn": "⚠️", "note": "•", "good": "✅"}
_SPECIAL = re.compile(r"[\\`*_\[\]#|~@$]|:(?=\w+:)")
"""Matches what marks up a text, mentions somebody or becomes a picture."""
FORMAT = 1
"""Version of the document; increases when a key changes its meaning or is removed."""
MOST = 10
"""Maximum number of findings, most severe first."""
LONGEST = 300
"""Maximum length of a text in characters."""
EVIDENCE = ("gain_ns", "gain_error_ns", "step_ns", "p_value", "late_steps")
MOST_STEPS = 10
NOTICED = ("id", "kind", "ranks", "hosts", "onset_step", "until_step", "per_step_ns", "per_step_error_ns", "cost_ns",
           "phase", "line", "window")
"""Fields of a finding of the watch of the whole job."""


def render(document: Mapping[str, Any]) -> str:
    """Returns a headline, findings and a small table.

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
    """Escapes a text so that Markdown and HTML show it unchanged, in one line."""
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


def findings_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `distprof findings --json` prints, at most about 12,000 characters; docs/findings.md describes it.

    Args:
        document: The document of the run's report.
    """
    blamed = {one["rank"]: one for one in (document["blame"] or {}).get("culprits", ()) if one["certain"]}
    every = document["findings"]
    watched = {one["id"]: one for one in ((document["steps"] or {}).get("watched") or {}).get("findings", ())}
    return {
        "format": FORMAT, "kind": "findings", "run": _cut(str(document["run"]["title"])),
        "world_size": document["world_size"], "missing_ranks": len(document["missing_ranks"]),
        "step": {name: document["step"][name] for name in ("time_ns", "low_ns", "high_ns")},
        "steps": {name: value for name, value in (document["steps"] or {}).items() if name != "watched"} or None,
        "findings": [_finding(one, blamed, watched) for one in every[:MOST]], "num_more": max(len(every) - MOST, 0)}


def _finding(one: Mapping[str, Any], blamed: Mapping[int, Mapping[str, Any]],
             watched: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found = {"severity": one["severity"], "text": _cut(one["text"]),
             "detail": _cut(one["detail"]), "rank": one["rank"], "step": one["step"],
             "module": _cut(one["module"]), "next": _cut(one["next"])}
    if one.get("id") in watched:
        noticed = watched[one["id"]]
        return found | {"watch": {name: _short(noticed[name]) for name in NOTICED}}
    return found | (_evidence(blamed[one["rank"]]) if one["section"] == "blame" and one["rank"] in blamed else {})


def _evidence(culprit: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the evidence of a finding about a late rank."""
    cause = culprit["causes"][0] if culprit["causes"] else None
    values = {name: culprit[name] for name in EVIDENCE} | {"late_steps": culprit["late_steps"][:MOST_STEPS]}
    return values | {"cause": None if cause is None else {
        **{name: cause[name] for name in ("kind", "spent", "of_peers")}, "where": _cut(cause["where"]),
        "line": None if cause["line"] is None else {
            **cause["line"], **{name: _cut(cause["line"][name]) for name in ("file", "function")}}}}


def _short(value: object) -> Any:
    """Shortens lists of many ranks or hosts."""
    return value[:MOST_STEPS] if isinstance(value, list) else value


def _cut(text: str | None) -> str | None:
    return None if text is None else cut(text, LONGEST)
