"""Describes culprits in sentences: which ranks delay the job, why, and what fixing them would gain."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from distprof.merge.blame.culprits import MATERIAL, SURE, Blind, Cause, Culprit
from distprof.merge.blame.excess import ShiftingLateness
from distprof.merge.blame.processors import CrowdedHost
from distprof.merge.blame.slow_groups import SlowGroup
from distprof.merge.text.phrases import brief, chance_words, file_name, in_one_unit, ordinal, rank_list, work_name
from distprof.merge.totals.step_time import StepTime
from distprof.units import counted, percent, si

NEEDED = 3
"""Minimum number of steps to distinguish a pattern from chance."""
CAUSES = 3
"""Number of causes that are listed per culprit."""
HOSTS = 3
"""Number of hosts with too few processors that get a line each."""
NONE_NAMED = re.compile("^No straggler( named)?(?=:)")
"""Matches the beginning of lines that may mislead if some rank is slow in other steps."""
LITTLE = 0.005
"""Gains below this share of a step count as nothing."""
UNKNOWN = "cause unknown: these steps have no timeline"
UNMARKED = "cause unknown: no module or annotation in its trace tells what that time belongs to"
_UNSEEN: Mapping[Blind, str] = {
    "one rank": "one rank: nobody waits",
    "one file": "several ranks in one file: whether one delays others is unknown until distprof split takes it apart",
    "others missing": "one rank is left: whether it waits or delays others is unknown, as the other ranks are missing",
    "no collective": "no collective with several ranks and known times was recorded: whether a rank delays others is "
                     "unknown",
    "no wait": "no rank is known to have waited for a collective: whether a rank delays others is unknown",
    "no clock": "clocks of the ranks were never compared: whether a rank delays others is unknown",
    "wrong clock": "collectives contradict the clocks of the ranks: whether a rank delays others is unknown",
    "no peers": "no two ranks run the same program: there is nobody to compare a rank with",
    "uneven": "in the recorded steps some ranks have a timeline and others none: whether a rank delays others is "
              "unknown (--steps arrivals=20 records all ranks in the same way)",
    "no timeline": "without a timeline of the devices, a rank that is not named may still delay others",
}


def culprit_lines(culprits: Sequence[Culprit], ranks: Collection[int], blind: Blind | None = None, *,
                  crowded: Sequence[CrowdedHost] = (), shifting: ShiftingLateness | None = None,
                  num_causes: int = CAUSES, missing: Sequence[int] = (),
                  usual: StepTime | None = None, slow_groups: Sequence[SlowGroup] = (),
                  slow_later: bool = False) -> Iterator[str]:
    """Yields, for each culprit, whom it delays, by how much and why, and what fixing it would gain; or why none is
    named.

    Args:
        culprits: The largest gain first; each is judged as if those before it were fixed.
        ranks: All ranks that were recorded.
        blind: Why delays could not be seen.
        crowded: Hosts whose ranks all waited for processors.
        shifting: Lateness of a different rank in each step.
        num_causes: Number of causes listed per culprit.
        missing: Ranks of the job that are missing.
        usual: The step time, of which gains are parts; None: as measured.
        slow_groups: Groups that move data more slowly than others.
        slow_later: Whether the watch of the whole job found slow ranks in other steps than those analysed here.
    """
    for line in _late(culprits, ranks, blind, crowded=crowded, shifting=shifting, num_causes=num_causes,
                      missing=missing, usual=usual):
        yield NONE_NAMED.sub(r"\g<0> in the recorded steps", line) if slow_later else line
    for one in slow_groups:
        yield from slow_group_lines(one)


def slow_group_lines(one: SlowGroup) -> Iterator[str]:
    """Yields `The link between hosts a and b is slow: all_reduce of ranks 0 and 8 ...`, and what that costs."""
    moving, others = in_one_unit(one.moving_ns, one.of_others_ns)
    groups = rank_list(one.groups[0]) + (f" and {counted(len(one.groups) - 1, 'more group')}" if one.groups[1:] else "")
    what = {1: f"Host {one.hosts[0]} moves data slowly" if one.hosts else ""}.get(len(one.hosts), (
        f"Between hosts {' and '.join(one.hosts)} data moves slowly" if len(one.hosts) == 2 else ""))
    if (len(one.hosts) == 1 and len(one.groups) == 1) or not what:
        what = "One group moves data slowly" if len(one.groups) == 1 else "Some groups move data slowly"
    yield (f"{what}: {' and '.join(one.ops)} of {groups} {'take' if one.groups[1:] else 'takes'} {moving} per step "
           f"against {others} in {counted(one.num_others, 'equal group')}; {chance_words(one.p_value)}")
    if one.gain_error_ns is None:
        yield (f"  At the speed of the others, a step of {brief(one.step_ns)} would get shorter by at most "
               f"{brief(one.gain_ns)}.")
        return
    before, after = in_one_unit(one.step_ns, one.step_ns - one.gain_ns)
    yield (f"  At the speed of the others, the step would go from {before.split()[0]} to {after} "
           f"(± {brief(one.gain_error_ns, 2)}).")


def _late(culprits: Sequence[Culprit], ranks: Collection[int], blind: Blind | None, *, crowded: Sequence[CrowdedHost],
          shifting: ShiftingLateness | None, num_causes: int, missing: Sequence[int],
          usual: StepTime | None) -> Iterator[str]:
    culprits = at_step_time(culprits, usual)
    certain = [one for one in culprits if one.certain]
    for one in certain:
        first, *others = lines_of(one, certain, ranks, num_causes=num_causes)
        yield first
        yield from (f"  {line}" for line in others)
    if certain:
        return
    if blind is not None:
        yield unseen(blind)
    elif shifting is not None:
        yield _shifting(shifting, usual)
    elif not culprits:
        yield _nobody(missing)
    else:
        yield from _doubt(next((one for one in culprits if one.is_due_to_turns), culprits[0]))
    yield from _crowded(crowded)


def at_step_time(culprits: Sequence[Culprit], usual: StepTime | None) -> list[Culprit]:
    """Rescales culprits' times from the analysed steps to the step time.

    A rank that is late only in some steps keeps its times, because the step time is that of one kind of steps.
    """
    # a culprit's `step_ns` is what remains once those before it are fixed
    whole_ns = max((one.step_ns for one in culprits), default=None)
    return [one if usual is None or not _is_always_late(one) else _scaled(one, usual.scale(whole_ns))
            for one in culprits]


def _is_always_late(one: Culprit) -> bool:
    return len(one.late_steps) == len(one.excess_ns)


def _scaled(one: Culprit, scale: float) -> Culprit:
    error_ns = None if one.gain_error_ns is None else scale * one.gain_error_ns
    return replace(
        one, step_ns=scale * one.step_ns, gain_ns=scale * one.gain_ns, last_gain_ns=scale * one.last_gain_ns,
        gain_error_ns=error_ns, by_turns_ns=scale * one.by_turns_ns,
        alone_gain_ns=None if one.alone_gain_ns is None else scale * one.alone_gain_ns,
        causes=[replace(why, gain_ns=scale * why.gain_ns) for why in one.causes])


def _shifting(one: ShiftingLateness, usual: StepTime | None) -> str:
    late_ns = one.late_ns if usual is None else one.share * usual.time_ns
    return (f"A different rank is late from step to step ({counted(len(one.ranks), 'rank')} in "
            f"{counted(one.num_steps, 'step')}): each step waits {brief(late_ns)} ({percent(one.share)}) for the "
            "latest rank. Likely uneven work per step, such as batches of different length; no single rank is to blame")


def _nobody(missing: Sequence[int]) -> str:
    if not missing:
        return "No straggler: no rank delays the others"
    return f"No straggler among the ranks recorded; whether {rank_list(missing)} delayed them is unknown"


def _crowded(hosts: Sequence[CrowdedHost]) -> Iterator[str]:
    """Yields `CPU oversubscribed on host X: ranks were runnable but not running 12.0 % of the time, ...`."""
    waited, so = "ranks were runnable but not running", "of the time, so lateness may be noise"
    if len(hosts) > HOSTS:
        shares = sorted(one.queued_ratio for one in hosts)
        yield (f"CPU oversubscribed on {len(hosts)} hosts: {waited} {percent(shares[0])} to {percent(shares[-1])} {so}")
    else:
        yield from (f"CPU oversubscribed on host {one.host}: {waited} {percent(one.queued_ratio)} {so}"
                    for one in hosts)


def lines_of(one: Culprit, certain: Sequence[Culprit], ranks: Collection[int], *,
             num_causes: int = CAUSES) -> Iterator[str]:
    """Yields the lines of one culprit.

    Args:
        one: A certain culprit.
        certain: All certain culprits, including this one.
        ranks: All ranks that were recorded.
        num_causes: Maximum number of causes that are named.
    """
    chance = "" if one.p_value is None else f"; {chance_words(one.p_value)}"
    yield f"{_delay(one, ranks)}{_hidden(one, certain)}: {_why(one)}{chance}"
    yield from (f"{cause(also)}: {brief(also.gain_ns)} of it" for also in one.causes[1:num_causes] if also.gain_ns > 0)
    yield _gain(one, is_first=one is certain[0])


def subject(one: Culprit) -> str:
    """Returns `Rank 2`, or `Host node5 (ranks 40-47)` if all of its ranks are late."""
    return f"Rank {one.rank}" if one.host is None else f"Host {one.host} ({rank_list(one.together)})"


def unseen(blind: Blind) -> str:
    """Returns why delays cannot be seen."""
    return _UNSEEN[blind]


def lines_of_summary(communication: Mapping[str, Any], ranks: Collection[int], *,
                     missing: Sequence[int] = (), num_causes: int = CAUSES,
                     usual: StepTime | None = None, slow_later: bool = False) -> Iterator[str]:
    """Yields the same lines from `communication`, `ranks` and `missing_ranks` of `summary.json`."""
    return culprit_lines(msgspec.convert(communication["culprits"], list[Culprit]), ranks, communication["blind"],
                         crowded=msgspec.convert(communication.get("crowded", []), list[CrowdedHost]),
                         shifting=msgspec.convert(communication.get("shifting"), ShiftingLateness | None),
                         num_causes=num_causes, missing=missing, usual=usual,
                         slow_groups=msgspec.convert(communication.get("slow_groups", []), list[SlowGroup]),
                         slow_later=slow_later)


def _doubt(one: Culprit) -> Iterator[str]:
    """Yields why the rank with the largest gain is not called late; and which one it is, if more steps may tell."""
    num_steps, fixing = len(one.excess_ns), "fixing the slowest rank would save"
    if one.p_value is None:
        yield (f"No straggler named: at least {NEEDED} steps are needed to rule out chance, and only {num_steps} "
               f"{'was' if num_steps == 1 else 'were'} recorded")
    elif one.is_due_to_turns:
        yield (f"No straggler: {fixing} {_saved(one)} per step, and ranks that compete for the CPUs of its host differ "
               f"by up to {brief(one.by_turns_ns, 2)}")
        return
    elif one.share < MATERIAL and one.last_gain_ns < MATERIAL * one.step_ns:
        only = "only " if one.gain_ns > (one.gain_error_ns or 0.0) else ""
        yield f"No straggler: {fixing} {only}{_saved(one)} per step, below {100 * MATERIAL:g} %"
        return
    elif not one.is_material:
        yield f"No straggler: {fixing} {_saved(one, error=True)} per step, which may be below {100 * MATERIAL:g} %"
        return
    elif one.p_value > SURE:
        yield f"No straggler: the slowest rank may be late by chance ({chance_words(one.p_value)}, above {SURE})"
        return
    else:
        yield "No straggler: the slowest rank was late only once or twice"
    if one.share >= MATERIAL:
        yield f"  Slowest: rank {one.rank}, {brief(one.gain_ns)} per step ({percent(one.share)}): {_why(one)}"


def _saved(one: Culprit, *, error: bool = False) -> str:
    """Returns the gain, with its error if wanted; only the error if the gain does not exceed it."""
    error_ns = one.gain_error_ns or 0.0
    if one.gain_ns <= error_ns:
        return f"less than can be measured (± {brief(error_ns)})" if error_ns else "nothing"
    return f"{brief(one.gain_ns)} ± {brief(error_ns)}" if error else brief(one.gain_ns)


def _delay(one: Culprit, ranks: Collection[int]) -> str:
    """Returns `Rank 2 delays every step by 14.8 ms (31.0 %)`."""
    whose = "" if set(one.delayed) == set(ranks) else f" of {rank_list(one.delayed)}"
    number, num_steps = len(one.late_steps), len(one.excess_ns)
    if _is_always_late(one):
        return f"{subject(one)} delays every step{whose} by {brief(one.gain_ns)} ({percent(one.share)})"
    by = brief(one.gain_ns * num_steps / number)
    mean = f"{brief(one.gain_ns)} per step, {percent(one.share)}"
    if number == 1:
        return f"{subject(one)} delays step {one.late_steps[0]}{whose} by {by} (once in {num_steps} steps; {mean})"
    gaps = {after - before for before, after in pairwise(one.late_steps)}
    if len(gaps) == 1 and number > 2 and (gap := gaps.pop()) > 1:
        return f"{subject(one)} delays every {ordinal(gap)} step{whose} by {by} ({mean})"
    return f"{subject(one)} delays {number} of {num_steps} steps{whose} by {by} ({mean})"


def _hidden(one: Culprit, certain: Sequence[Culprit]) -> str:
    """Returns what fixing it would gain once the others are fixed, if that is much more."""
    if len(certain) < 2 or one.last_gain_ns < 2 * one.gain_ns or one.last_gain_ns < MATERIAL * one.step_ns:
        return ""
    others = sorted(rank for other in certain if other is not one for rank in other.ranks)
    return f", and by {brief(one.last_gain_ns)} once {rank_list(others)} {'is' if len(others) == 1 else 'are'} fixed"


def _gain(one: Culprit, *, is_first: bool) -> str:
    before, after = in_one_unit(one.step_ns, one.step_ns - one.gain_ns)
    error = "" if one.gain_error_ns is None else f" (± {brief(one.gain_error_ns, 2)})"
    what = f"Fixing {'it' if one.host is None else 'all of them'}{'' if is_first else ' as well'}"
    alone = "" if one.alone_gain_ns is None else f" Fixing only one would save {_little(one.alone_gain_ns, one)}."
    if not _is_always_late(one):
        return f"{what} would save {brief(one.gain_ns)} per step on average{error}.{alone}"
    return f"{what} would cut the step from {before.split()[0]} to {after}{error}.{alone}"


def _little(gain_ns: float, one: Culprit) -> str:
    return "nothing" if gain_ns < LITTLE * one.step_ns else f"at most {brief(gain_ns)}"


def _why(one: Culprit) -> str:
    """Returns the largest cause; without a timeline that shows it, how to record one while the rank is late."""
    first = one.causes[0] if one.causes else None
    if first is None or first.kind != "unknown" or first.where is not None:
        return "cause unknown" if first is None else cause(first)
    again = f"; rerun with `--steps wait={one.late_steps[0]}`" if one.late_steps else ""
    return f"{UNKNOWN}{again}"


def cause(one: Cause) -> str:
    """Returns what the rank spends its time on, and what its peers do."""
    if one.kind == "unknown":
        return UNKNOWN if one.where is None else UNMARKED
    if one.kind == "core":
        return f"it got {100 * one.spent:.0f} % of a core against {100 * one.of_peers:.0f} % for its peers"
    if one.kind == "batch":
        return f"its batch has {counted(round(one.spent), 'sample')} against {one.of_peers:.0f} on its peers"
    if one.kind == "elements":
        return f"its input has {si(one.spent)} elements against {si(one.of_peers)} on its peers"
    spent, of_peers = in_one_unit(one.spent, one.of_peers)
    return f"{work_name(one.kind, one.where)} takes {spent} against {of_peers} on its peers{_line(one)}"


def _line(one: Cause) -> str:
    """Returns `, 240 ms more at train.py:46 get_batch`; never more than the whole cause, as samples are coarse."""
    line = one.line
    if line is None:
        return ""
    function = "" if line.function == "<module>" else f" {line.function}"
    more = min(line.spent_ns - line.of_peers_ns, one.spent - one.of_peers)
    return f", {brief(more)} more at {file_name(line.file)}:{line.line}{function}"
