"""Makes the ten-line answer from the summary: how fast the job is, what keeps it from being faster, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from distprof.contract.passes import WAIT
from distprof.contract.problems import Problem, from_json
from distprof.merge.text.communication.culprits import lines_of_summary
from distprof.merge.text.phrases import change_line, steps_words
from distprof.merge.text.problems import sentences
from distprof.merge.text.rates import bubble, exposed, lightly, mesh, mfu, rates
from distprof.merge.text.watch import end_lines, is_slow_later, watched_of
from distprof.merge.totals.step_time import step_time_of

MOST = 10
LATE = 4
"""Maximum number of lines on late ranks; `distprof comms` shows all."""
MISSING = 2
"""Maximum number of lines on what is missing; `distprof stats` shows all."""
UNTOLD = ("exposed communication unknown: no rank has steps and a timeline",
          "exposed communication unknown: no kernel of a device communicates, as with gloo")


def answer(summary: Mapping[str, Any]) -> list[str]:
    """Returns ten lines, or one or two more if the job is watched, slow and incomplete.

    Args:
        summary: `summary.json` of a run that distprof recorded.
    """
    if _is_only_watched(summary):
        lines = [f"{mesh(summary)}: no passes were recorded, the job was only watched"]
        return [*lines, *end_lines(watched_of(summary), MOST - 2), *_missing(summary)]
    light = lightly(summary)
    fully = f" ({len(light.full)} of them recorded fully)" if light is not None else ""
    lines = [f"{mesh(summary)}{fully}: {', '.join(rates(summary))}"]
    if summary["step"]["time_ns"] is not None:
        lines.append(mfu(summary["step"], at_least=bool(summary["uncounted_ops"])))
    lines += _communication(summary)
    last = [*change_line(summary), *_missing(summary)]
    return [*lines, *end_lines(watched_of(summary), max(MOST - 1 - len(lines) - len(last), 1)), *last]


def _is_only_watched(summary: Mapping[str, Any]) -> bool:
    """Returns whether the recording had no passes, as with `--passes off`, but the whole job was watched."""
    passes, watched = {one["pass"] for one in summary.get("passes") or ()}, watched_of(summary)
    return passes == {WAIT} and watched is not None and watched.num_steps > 0



def _communication(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields how much of a step is exposed communication, and who is late and why."""
    found = summary["communication"]
    if found is None:
        yield ("exposed communication: none, there is one rank" if summary["world_size"] == 1 else
               "exposed communication unknown: distprof comms says why")
        return
    yield exposed(found) or UNTOLD[bool(found.get("of_device"))]
    if found["pipeline"] is not None:
        yield bubble(found["pipeline"])
    lines = list(lines_of_summary(found, summary["ranks"], missing=summary["missing_ranks"], num_causes=1,
                                  usual=step_time_of(summary["step"]),
                                  slow_later=is_slow_later(watched_of(summary))))
    yield from lines[:LATE] if len(lines) <= LATE else (*lines[:LATE - 1], "  distprof comms says more about it")


def _whole(summary: Mapping[str, Any]) -> str:
    number = summary["world_size"]
    return "the rank is complete" if number == 1 else f"all {number} ranks complete"


def _missing(summary: Mapping[str, Any]) -> Iterator[str]:
    problems = from_json(Problem, summary["problems"])
    if not problems:
        words = None if _is_only_watched(summary) else steps_words(summary)
        yield _whole(summary) + (f"; {words}" if words is not None else "")
    shown = MISSING if len(problems) <= MISSING else MISSING - 1
    yield from (f"incomplete: {text}" for text in islice(sentences(problems), shown))
    if len(problems) > shown:
        yield f"incomplete: {len(problems) - shown} more; see distprof stats"
