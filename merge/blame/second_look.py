"""A second look at late ranks of many: their timelines, and those of a few peers, name the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from distprof.contract.tables import STEPS
from distprof.errors import DataError
from distprof.merge.blame.analysis import VAGUE, analyse
from distprof.merge.blame.culprits import Cause, Culprit
from distprof.merge.blame.first_cut import FirstCut
from distprof.merge.clock.choose import hosts_of
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.levels.level_run import LevelRun
from distprof.merge.levels.representatives import has_folder
from distprof.merge.match.matched_run import match_run
from distprof.merge.run.tables import read_table

PEERS = 2
"""With which a culprit is compared."""
MOST = 6
"""Culprits that are looked at again, those that cost most."""


def looked_again(level: LevelRun, culprits: Sequence[Culprit], cut: FirstCut) -> list[Culprit]:
    """Names causes by what timelines say, where the folders of a culprit and of peers are there.

    Whether a rank is late, by how much and how surely, stays what the steps of all ranks say.
    """
    folders, found = {rank.number: rank for rank in level.run.ranks}, list(culprits)
    for index in [index for index, one in enumerate(found) if one.certain and _is_vague(one)][:MOST]:
        one = found[index]
        here = islice((rank for rank in (one.rank, *cut.near(one.rank)) if has_folder(folders[rank])), 1 + PEERS)
        if one.rank in (ranks := set(here)) and len(ranks) > 1:
            causes = _causes(level, ranks).get(one.rank)
            if causes is not None:
                found[index] = replace(one, causes=_with_gains(causes, one))
    return found


def _is_vague(one: Culprit) -> bool:
    return not one.causes or one.causes[0].kind in VAGUE


def _causes(level: LevelRun, ranks: set[int]) -> Mapping[int, Sequence[Cause]]:
    """What these ranks spend more time on than each other, by the analysis of their tables; empty where they are
    damaged."""
    run = level.run.of_tables(ranks)
    try:
        matched = match_run(run)
        if matched.rows.is_empty():
            return {}
        rows = measured_collectives(matched.rows, level.clock, hosts_of(run))
        seen = analyse(run, level.clock, rows, read_table(run, STEPS).rows)
    except DataError:
        return {}
    return {one.rank: one.causes for one in seen.culprits if not _is_vague(one)}


def _with_gains(causes: Sequence[Cause], one: Culprit) -> list[Cause]:
    """What each gains the job: few ranks show only what it gains the rank."""
    most = max(one.gain_ns, one.last_gain_ns)
    return [replace(cause, gain_ns=most * cause.gain_ns / max(causes[0].gain_ns, 1)) for cause in causes]
