"""What `distprof diff` says as Markdown for a pull request, and as a page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from distprof.merge.text.difference.document import Document
from distprof.terminal import Shown, visible

ESCAPED = {ord(character): f"&#{ord(character)};" for character in "&<>|`*_[]~@#\\$!"}
"""What Markdown or GitHub would take for more than text: links, mentions, references, emphasis."""


def markdown(shown: Document) -> Shown:
    """The document with the tables of GitHub; names in it stay text."""
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
    """The document as a page without anything from elsewhere; every name in it is escaped."""
    from jinja2 import Environment  # takes a while to import

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    template = files("distprof.merge.text.difference").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(shown=shown)
