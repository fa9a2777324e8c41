"""Makes the content of `distprof diff`, sentences and tables, which text, Markdown and HTML share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distprof.contract.passes import TRACE
from distprof.merge.difference.attribution import Row, Table
from distprof.merge.difference.change import LEVEL, Change
from distprof.merge.difference.difference import Difference
from distprof.merge.difference.limits import Judged
from distprof.merge.text.difference.answer import limit_line
from distprof.merge.text.difference.headlines import (
    from_to,
    headlines,
    module_name,
    noise_line,
    note_lines,
    ratio_of,
    signed,
)
from distprof.merge.text.problems import sentence
from distprof.merge.totals.workload import Unit
from distprof.reporters.page import Page
from distprof.terminal import quoted, quoted_all
from distprof.units import UNKNOWN, duration, si, size

TOP = 10
"""Number of rows of a table that are shown."""
LONG = 40
"""If one of two texts has more characters, only the differences are shown."""
TIMES = ("base", "new", "change", "interval", "")
VERDICTS = {"changed": "changed", "noise": "noise", "same": "", "unknown": "?", "added": "added", "removed": "removed"}
COUNTS = {"params": "model parameters", "stored_params": "parameters stored", "fwd_flops": "forward FLOPs",
          "bwd_flops": "backward FLOPs", "recompute_flops": "recomputed FLOPs", "flops": "FLOPs per step",
          "param_bytes": "parameter bytes per rank", "peak_bytes": "peak memory per rank"}
FLOPS_PER: Mapping[Unit, str] = {"samples": "FLOPs per sample", "elements": "FLOPs per input element"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table with remarks about it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The first cell is a name."""
    remarks: Sequence[str] = ()
    bars: Sequence[float] = ()
    """For each row, its change relative to the largest one, from -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Everything that is shown."""

    title: str
    headlines: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str]
    limits: Sequence[str] = field(default_factory=tuple)


def document(found: Difference, judged: Sequence[Judged], *, top: int = TOP) -> Document:
    """Returns everything that is shown about a difference."""
    runs = [quoted_all([run.path for run in side]) for side in (found.base, found.new)]
    return Document(title=f"base {runs[0]}, new {runs[1]}", headlines=list(headlines(found)),
                    sections=list(_sections(found, top)), notes=list(_notes(found)),
                    limits=[limit_line(one) for one in judged])


def render(shown: Document, page: Page) -> str:
    """Returns the document as text."""
    page.line(shown.title)
    page.line()
    for line in (*shown.headlines, *shown.limits):
        page.line(line)
    for section in shown.sections:
        page.line()
        page.table((section.title, *section.header), section.rows)
        for line in section.remarks:
            page.line(line)
    if shown.notes:
        page.line()
        for line in shown.notes:
            page.line(line)
    return page.text()


def _sections(found: Difference, top: int) -> Iterator[Section]:
    if found.parts is not None:
        rest = [("rest", "", "", signed(found.parts.rest_ns), "", "")] if abs(found.parts.rest_ns) >= 1 else []
        rows = [_times(str(row.item), row.change) for row in found.parts.rows]
        yield Section(title="part of a step", header=TIMES, rows=[*rows, *rest],
                      bars=[*_bars(found.parts.rows), *(0.0 for _ in rest)], remarks=[_parts_remark(found)])
    if found.modules is not None:
        yield _items("module, self time per step", found.modules, top, what="modules", named=module_name,
                     extra=lambda row: _flops(found, row))
    if found.operators is not None:
        yield _items("operator, self time per step", found.operators, top, what="operators", named=str)
    if found.collectives is not None:
        yield _items("collective, time per step", found.collectives, top, what="collectives",
                     named=" ".join, extra=lambda row: _calls(found, row))
    yield from _counted(found)
    differ = [(fact.name, *_words(fact.base, fact.new)) for fact in found.facts if fact.base != fact.new]
    if differ:
        yield Section(title="run properties", header=("base", "new"), rows=differ)


def _words(base: str | None, new: str | None) -> tuple[str, str]:
    """Returns two texts; if one is long, only the words that the other one lacks."""
    texts = (base or "-", new or "-")
    if max(map(len, texts)) <= LONG:
        return texts
    words = [text.split() for text in texts]
    ours, theirs = (" ".join(word for word in words[side] if word not in words[1 - side]) for side in (0, 1))
    return f".. {ours}", f".. {theirs}"


def _parts_remark(found: Difference) -> str:
    if found.parts_from == TRACE and all(run.has_device_timeline for run in found.runs):
        return "times of kernels in steps with a timeline, `other` is the rest of the step time; mean of all ranks"
    of = "with a timeline" if found.parts_from == TRACE else "with module timers"
    exposed = "" if found.parts_from == TRACE else "; forward and backward include communication"
    return f"shares of steps {of}, times the step time; mean of all ranks{exposed}"


def _items(title: str, table: Table, top: int, *, what: str, named: Any, extra: Any = lambda row: "") -> Section:
    shown = table.rows[:top]
    remarks, apart = [], " but communication" if what == "operators" else ""
    if table.common is not None:
        remarks.append(f"overall, {what}{apart} take {table.common:.3f} x as long; `beyond` is each one's change "
                       "relative to that, with its interval")
    hidden = len(table.rows) - len(shown)
    rest = table.difference_ns - sum(row.change.difference or 0.0 for row in shown)
    counted = [extra(row) for row in shown]
    more = [(one,) if any(counted) else () for one in counted]
    rows = [(*_own_times(named(row.item), row, has_common=table.common is not None), *one)
            for row, one in zip(shown, more, strict=True)]
    header = ("base", "new", "change", *(("beyond",) if table.common is not None else ()), "interval", "",
              *(("counted",) if any(counted) else ()))
    last = (f"rest, and {hidden} more" if hidden else "rest", "", "", signed(rest))
    rows.append((*last, *[""] * (len(header) + 1 - len(last))))
    return Section(title=title, header=header, rows=rows, remarks=remarks, bars=[*_bars(shown), 0.0])


def _own_times(name: str, row: Row, *, has_common: bool) -> tuple[str, ...]:
    verdict = {"base": "removed", "new": "added"}.get(row.only_in or "", VERDICTS[row.own.verdict])
    beyond = (signed(row.own.difference),) if has_common else ()
    sides = (UNKNOWN if row.only_in == other else duration(ns)
             for ns, other in ((row.change.base, "new"), (row.change.new, "base")))
    return (name, *sides, signed(row.change.difference), *beyond, _interval(row.own), verdict)


def _times(name: str, change: Change) -> tuple[str, ...]:
    return (name, duration(change.base), duration(change.new), signed(change.difference), _interval(change),
            VERDICTS[change.verdict])


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return "unknown" if change.difference is not None else UNKNOWN
    return f"{signed(change.low)} .. {signed(change.high)}"


def _bars(rows: Sequence[Row]) -> list[float]:
    changes = [row.own.difference or 0.0 for row in rows]
    most = max(map(abs, changes), default=0.0)
    return [change / most if most else 0.0 for change in changes]


def _flops(found: Difference, row: Row) -> str:
    change = found.own_flops.get(str(row.item))
    return "" if change is None or change.verdict != "changed" else f"FLOPs {from_to(change, si)}"


def _calls(found: Difference, row: Row) -> str:
    assert isinstance(row.item, tuple)
    shown = {"calls": si, "size_bytes": size}
    said = [f"{name.removeprefix('size_')} {from_to(change, write)}" for name, write in shown.items()
            if (change := found.collective_counts.get((*row.item, name))) is not None and change.verdict != "same"]
    return ", ".join(said)


def _counted(found: Difference) -> Iterator[Section]:
    counts = COUNTS | ({} if found.flops_unit is None else {"flops": FLOPS_PER[found.flops_unit]})
    rows = [(title, write(change.base), write(change.new), ratio_of(change))
            for name, title in counts.items() if (change := found.counts[name]).base != change.new
            for write in (size if "bytes" in name else si,)]
    same = [counts[name] for name, change in found.counts.items() if change.verdict == "same" and change.base]
    if rows or same:
        remarks = [f"equal: {', '.join(same)}"] if same else []
        yield Section(title="counted", header=("base", "new", "change"), rows=rows, remarks=remarks)


def _notes(found: Difference) -> Iterator[str]:
    if found.step is not None or found.parts is not None:
        yield noise_line(found.noise)
        yield (f"intervals hold with {100 * (1 - LEVEL):.0f} %, those of a table together; `changed` and `slower` mean "
               f"p < {LEVEL}")
    yield from note_lines(found.notes)
    if found.pairing.moved:
        yield _moved_line(found.pairing.moved)
    for side, runs in (("base", found.base), ("new", found.new)):
        for run in runs:
            yield from (f"{side} {quoted(run.path)}: {sentence(problem)}" for problem in run.problems)


def _moved_line(moved: Mapping[str, str]) -> str:
    shown = [f"{before} is {after}" for before, after in moved.items()]
    more = f", and {len(shown) - TOP} more" if len(shown) > TOP else ""
    return ("assumed to be renamed modules, from class, parameter shapes, FLOPs and order: "
            f"{', '.join(shown[:TOP])}{more}")
