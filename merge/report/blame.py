"""Which ranks delay the job, and where it got stuck, in data and in the sentences of `distprof comms`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from distprof.contract.problems import RankFailed
from distprof.merge.report.absent import AbsentError
from distprof.merge.report.sources import Sources
from distprof.merge.text.communication.culprits import at_step_time, culprit_lines, lines_of, unseen
from distprof.merge.text.communication.hang import hang_lines
from distprof.merge.text.documents.comms_json import culprit_data
from distprof.merge.text.watch import is_slow_later, watched_of


def blame(sources: Sources) -> dict[str, Any]:
    """Culprits with the sentence about each that is certain.

    Raises:
        AbsentError: Nobody looked.
    """
    found = sources.comms
    if found.analysis is None:
        raise AbsentError("no collective was recorded, so nothing shows whether a rank delays others",
                          remedy="record those of a job with several ranks using --steps trace=6,arrivals=20")
    analysis, ranks = found.analysis, [rank.number for rank in found.run.ranks]
    culprits = at_step_time(analysis.culprits, found.step_time)
    certain = [one for one in culprits if one.certain]
    lines = {one.rank: [*lines_of(one, certain, ranks)] for one in certain}
    known = bool(found.steps)
    return {
        "culprits": [{**culprit_data(one), "sentence": lines[one.rank][0] if one.certain else None,
                      "more": lines.get(one.rank, [])[1:]} for one in culprits],
        "blind": None if analysis.blind is None else unseen(analysis.blind),
        "crowded": [asdict(one) for one in analysis.crowded],
        "shifting": None if analysis.shifting is None else asdict(analysis.shifting),
        "lines": [line.strip() for line in culprit_lines(
            analysis.culprits, ranks, analysis.blind, crowded=analysis.crowded, shifting=analysis.shifting,
            missing=found.run.missing, usual=found.step_time,
            slow_groups=analysis.slow_groups,
            slow_later=is_slow_later(watched_of(sources.summary)))] if known else [
            "late ranks are not judged: the collectives have no steps"]}


def hang(sources: Sources) -> dict[str, Any]:
    """Where the job got stuck.

    Raises:
        AbsentError: It did not, as far as is known.
    """
    found = sources.comms
    if found.hangs is None:
        raise AbsentError("no rank reported being stuck")
    is_known = any(isinstance(one, RankFailed) and one.why is not None for one in found.run.problems)
    lines = list(hang_lines(found.hangs, but_victims=is_known))
    return {"sentence": lines[0] if lines else None, "lines": lines,
            "hangs": [asdict(one) for one in found.hangs.hangs],
            "ranks": msgspec.to_builtins(list(found.hangs.standing.values()))}
