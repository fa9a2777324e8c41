"""Shows `distprof ops --sequences` on one screen, and as data for `--json` (docs/operators.md has its keys)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem
from distprof.merge.operators.merged_operators import run_of_merge
from distprof.merge.operators.selection import Selection
from distprof.merge.operators.sequences import KernelSequence, RunSequences, run_sequences
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.text.phrases import cut
from distprof.merge.text.problems import fail_if_incomplete, show_problems
from distprof.reporters.page import Page
from distprof.terminal import quoted_all
from distprof.units import UNKNOWN, counted, duration, percent, spans

TOP = 10
SPELLED = 3
"""Number of sequences whose kernels are listed without --top."""


def sequences_text(*runs: Path, selection: Selection, most: int, sort: str, top: int | None, as_json: bool,
                   strict: bool) -> str:
    """Returns repeated sequences of kernels, as text or JSON.

    Args:
        *runs: A run directory, or several of one job; traces of other programs; or a merge of them.
        selection: Which kernels.
        most: Maximum length.
        sort: What to sort by, largest first.
        top: How many; None: all in JSON, and `TOP` in text.
        as_json: Whether to return JSON.
        strict: Whether to fail if something is missing.

    Raises:
        DataError: The run cannot be read, or nothing in it ran on a GPU.
        UsageError: There is no such order, rank, step or phase.
        IncompleteError: Something is missing and `strict` is set.
    """
    run = open_run(*run_of_merge(*runs).paths)
    found = run_sequences(run, selection, most=most, sort=sort, top=top or (None if as_json else TOP))
    problems = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    if as_json:
        return json.dumps(sequences_data(run, found, most), indent=1)
    return render(SequencesShown(run=run, found=found, most=most, top=top, paths=runs, problems=problems), Page())


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesShown:
    """What the screen shows."""

    run: Run
    found: RunSequences
    most: int
    """Maximum length of the sequences that were searched."""
    top: int | None
    paths: Sequence[Path]
    problems: Sequence[Problem]


def render(shown: SequencesShown, page: Page) -> str:
    """Returns the screen as text."""
    found = shown.found
    page.line(f"{counted(found.num_commands, 'kernel')}, copies and fills of {counted(len(found.ranks), 'rank')}; "
              f"sequences of 2 to {shown.most} of them that recur on one stream: {found.number}")
    if found.num_stepless:
        page.line(f"ignored: {counted(found.num_stepless, 'device command')} ({duration(found.stepless_ns)}) outside "
                  "all steps, or whose launch is not in the trace")
    if found.found:
        page.line()
        _table(found, page)
    for number, one in enumerate(found.found[:shown.top or SPELLED], start=1):
        page.line()
        _spelled(number, one, page)
    if found.number > len(found.found):
        page.line()
        page.line(f"{counted(found.number - len(found.found), 'more sequence')}: --top {found.number} shows all, and "
                  "their kernels")
    page.line()
    if shown.run.remarks or shown.problems:
        show_problems(shown.run.remarks, shown.problems, page)
        page.line()
    page.line(f"Next: distprof waits --queues {quoted_all(shown.paths)}")
    return page.text()


def _table(found: RunSequences, page: Page) -> None:
    several = len(found.ranks) > 1
    page.table(
        ["no", "module", "phase", "kernels", "times", *(["ranks"] if several else []), "device", "share", "gaps"],
        [[str(number), cut(pattern_of(one.modules)), ", ".join(one.phases) or UNKNOWN, str(one.length),
          str(one.calls), *([spans(one.ranks)] if several else []), duration(one.device_ns),
          percent(_share(one, found)), duration(one.gap_ns)] for number, one in enumerate(found.found, start=1)],
        left=3)


def _spelled(number: int, one: KernelSequence, page: Page) -> None:
    """Prints the kernels of a sequence; equal ones in a row share a line."""
    rows = [(by or UNKNOWN, name, len(list(same))) for (by, name), same in groupby(
        zip(one.launched_by, one.names, strict=True))]
    page.table([f"launched by, in sequence {number}", "kernel"], [
        [cut(by), f"{cut(name)} x {times}" if times > 1 else cut(name)] for by, name, times in rows], left=2)


def _share(one: KernelSequence, found: RunSequences) -> float | None:
    return one.device_ns / found.device_ns if found.device_ns else None


def pattern_of(modules: Sequence[str]) -> str:
    """Summarises paths: `layers.*.norm` for those of several layers; paths of other lengths separately, longest first.

    Returns a dash if there are no paths.
    """
    parts = sorted((path.split(".") for path in modules), key=len, reverse=True)
    each = ([*zip(*same, strict=True)] for _, same in groupby(parts, key=len))
    return ", ".join(".".join(level[0] if len(set(level)) == 1 else "*" for level in levels) or "(root)"
                     for levels in each) or UNKNOWN


def sequences_data(run: Run, found: RunSequences, most: int) -> dict[str, Any]:
    """Returns the data of the command.

    Args:
        run: The run.
        found: Its sequences.
        most: Maximum length of the sequences that were searched.
    """
    return {
        "format": FORMAT, "kind": "sequences", "ranks": list(found.ranks), "world_size": run.world_size,
        "longest": most, "num_sequences": found.number, "num_commands": found.num_commands,
        "device_ns": found.device_ns,
        "left_out": {"commands_in_no_step": found.num_stepless, "in_no_step_ns": found.stepless_ns},
        "sequences": [{
            "calls": one.calls, "length": one.length, "ranks": list(one.ranks), "device_ns": one.device_ns,
            "gap_ns": one.gap_ns, "share": _share(one, found), "modules": list(one.modules),
            "phases": list(one.phases), "kernels": [
                {"name": name, "launched_by": by} for name, by in zip(one.names, one.launched_by, strict=True)],
        } for one in found.found]}
