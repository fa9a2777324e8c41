"""What `distprof comms` says of dumps of torch's flight recorder that lie without a run and without traces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem, RanksMissing
from distprof.errors import DataError
from distprof.merge.blame.hang import Hangs, hangs
from distprof.merge.run.flight_recorder import dump_files, read_dumps
from distprof.merge.run.merged import is_merge
from distprof.merge.run.traces.discovery import discover, is_recorded
from distprof.merge.text.communication.hang import hang_lines
from distprof.merge.text.phrases import rank_list
from distprof.merge.text.problems import show_problems
from distprof.reporters.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """What the dumps of a job say."""

    hangs: Hangs
    ranks: Sequence[int]
    world_size: int
    problems: list[Problem]


def dumps_alone(path: Path) -> Dumps | None:
    """The dumps at a path; None where there are none, or a run or traces that say more.

    Raises:
        DataError: None of them can be read.
    """
    if not path.exists() or next(dump_files(path), None) is None:
        return None
    if path.is_dir() and (is_recorded(path) or is_merge(path) or discover([path], named=True).candidates):
        return None
    found, unreadable = read_dumps(path)
    if not found:
        raise DataError(f"no readable flight recorder dumps in {path}: {unreadable[0].file}: {unreadable[0].detail}")
    size = next(iter(found.values())).world_size
    missing = tuple(rank for rank in range(size) if rank not in found)
    problems: list[Problem] = [*unreadable, *([RanksMissing(ranks=missing, world_size=size)] if missing else [])]
    return Dumps(hangs=hangs(found), ranks=list(found), world_size=size, problems=problems)


def dumps_text(found: Dumps, *, as_json: bool) -> str:
    """Where the job got stuck, as lines or as `stuck` of `comms --json`."""
    if as_json:
        return json.dumps({
            "format": FORMAT, "kind": "flight_recorder", "world_size": found.world_size, "ranks": found.ranks,
            "problems": msgspec.to_builtins(found.problems),
            "stuck": msgspec.to_builtins({"hangs": found.hangs.hangs, "ranks": list(found.hangs.standing.values())}),
        }, indent=1)
    page = Page()
    for line in _lines(found):
        page.line(line)
    show_problems((), found.problems, page)
    return page.text()


def _lines(found: Dumps) -> Iterator[str]:
    yield f"dumps of torch's flight recorder: {rank_list(found.ranks)}"
    if not found.hangs.hangs:
        yield "no collective was left unfinished"
    yield from hang_lines(found.hangs)
    yield "waiting times are derived from when the files were written: keep those times when copying (cp -p)"
