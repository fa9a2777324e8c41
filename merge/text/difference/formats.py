"""Formats `distprof diff` as Markdown for a pull request, as a self-contained HTML page, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec

from distprof.contract.paths import FORMAT
from distprof.merge.difference.attribution import Table
from distprof.merge.difference.change import LEVEL
from distprof.merge.difference.difference import Difference
from distprof.merge.difference.limits import Judged
from distprof.merge.difference.observed import Observed
from distprof.merge.text.difference.document import Document
from distprof.terminal import Shown, visible

ESCAPED = {ord(character): f"&#{ord(character)};" for character in "&<>|`*_[]~@#\\$!"}
"""Characters that Markdown or GitHub interpret: links, mentions, references, emphasis."""


def markdown(shown: Document) -> Shown:
    """Returns the document as GitHub Markdown; names in it are escaped."""
    limits = [f"- {_cell(line)}" for line in shown.limits]
    parts = [f"### {_cell(shown.title)}", "\n".join(f"- **{_cell(line)}**" for line in shown.headlines)]
    parts += ["\n".join(limits)] if limits else []
    for section in shown.sections:
        if section.rows:
            parts.append("\n".join(_table((section.title, *section.header), section.rows)))
        parts += [_cell(line) for line in section.remarks]
    if shown.notes:
        parts.append("\n".join(("<details><summary>Notes</summary>", "", *(f"- {_cell(line)}" for line in shown.notes),
                                "", "</details>")))
    return Shown.drawn("\n\n".join(parts))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    marks = ["---", *("---:" for _ in header[1:])]
    return [_row([_cell(one) for one in header]), _row(marks), *(_row([_cell(one) for one in row]) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return visible(text).translate(ESCAPED)


def html(shown: Document) -> str:
    """Returns the document as a self-contained page; every name in it is escaped."""
    from jinja2 import Environment  # takes a while to import

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    template = files("distprof.merge.text.difference").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(shown=shown)


def difference_data(found: Difference, judged: Sequence[Judged]) -> dict[str, Any]:
    """Returns all of it as data; unknown values are null."""
    return {
        "format": FORMAT, "kind": "diff",
        "base": [_run(run) for run in found.base], "new": [_run(run) for run in found.new],
        "noise": {"measured": found.noise.is_measured, "assumed": found.noise.assumed, "level": LEVEL,
                  "by_queue": list(found.noise.by_queue)},
        "step_passes": list(found.step_passes), "num_steps": found.num_steps if found.step_passes else 0,
        "parts_pass": found.parts_from,
        "step_time": found.step.to_json() if found.step is not None else None,
        "cpu_time": found.cpu.to_json() if found.cpu is not None else None,
        "rates": {name: change.to_json() for name, change in found.rates.items()},
        "counts": {name: change.to_json() for name, change in found.counts.items()},
        **{name: _table_data(name, getattr(found, name)) for name in ("parts", "modules", "operators", "collectives")},
        "module_flops": {path: change.to_json() for path, change in found.module_flops.items()},
        "collective_counts": [{"op": op, "group": group, "quantity": name, **change.to_json()}
                              for (op, group, name), change in found.collective_counts.items()],
        "moved": [{"base": before, "new": after} for before, after in found.pairing.moved.items()],
        "facts": [{"name": one.name, "base": one.base, "new": one.new} for one in found.facts],
        "notes": [{"code": note.code, "side": note.side, **note.fields} for note in found.notes],
        "limits": [{"text": one.limit.text, "outcome": one.outcome,
                    "change": one.change.to_json() if one.change is not None else None} for one in judged],
    }


def _run(run: Observed) -> dict[str, Any]:
    return {"path": str(run.path), "run_id": run.run.run_id, "kind": run.run.kind, "world_size": run.run.world_size,
            "problems": msgspec.to_builtins(run.problems)}


def _table_data(kind: str, table: Table | None) -> dict[str, Any] | None:
    if table is None:
        return None
    rows = [{**_named(kind, row.item), "change": row.change.to_json(), "beyond_common": row.own.to_json(),
             "only_in": row.only_in, "sides": dict(row.sides)} for row in table.rows]
    return {"difference_ns": table.difference_ns, "rest_ns": table.rest_ns, "common": table.common, "rows": rows}


def _named(kind: str, item: Any) -> dict[str, Any]:
    if kind == "collectives":
        return {"op": item[0], "group": item[1]}
    return {{"parts": "part", "modules": "module", "operators": "op"}[kind]: item}
