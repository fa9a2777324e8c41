"""The answer alone: the findings of a run, few enough for a script or a coding agent to read them whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = 1
"""Of the document; grows when a key changes its meaning or goes."""
MOST = 10
"""Findings, those that something is wrong with first."""
LONGEST = 300
"""Characters of a text."""
EVIDENCE = ("gain_ns", "gain_error_ns", "step_ns", "p_value", "late_steps")
MOST_STEPS = 10
NOTICED = ("id", "kind", "ranks", "hosts", "onset_step", "until_step", "per_step_ns", "per_step_error_ns", "cost_ns",
           "phase", "line", "window")
"""Of a finding of the watch of the whole job."""


def findings_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """What `distprof findings --json` prints; docs/findings.md describes it. At most some 12,000 characters.

    Args:
        document: That of the report of the run.
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
    """What a finding about a late rank rests on."""
    cause = culprit["causes"][0] if culprit["causes"] else None
    values = {name: culprit[name] for name in EVIDENCE} | {"late_steps": culprit["late_steps"][:MOST_STEPS]}
    return values | {"cause": None if cause is None else {
        **{name: cause[name] for name in ("kind", "spent", "of_peers")}, "where": _cut(cause["where"]),
        "line": None if cause["line"] is None else {
            **cause["line"], **{name: _cut(cause["line"][name]) for name in ("file", "function")}}}}


def _short(value: object) -> Any:
    """Lists of many ranks or hosts are cut."""
    return value[:MOST_STEPS] if isinstance(value, list) else value


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST else f"{text[:LONGEST - 3]}..."
