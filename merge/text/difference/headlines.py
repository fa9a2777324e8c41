"""Makes sentences of `distprof diff`: its first lines (step time, rates, largest change), words for changes, notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distprof.merge.difference.attribution import Row
from distprof.merge.difference.change import Change
from distprof.merge.difference.difference import Difference
from distprof.merge.difference.facts import BATCH, PARAMETER_TYPES, PRODUCT_TYPES, RANKS, TOPOLOGY, Note
from distprof.merge.difference.samples import Noise
from distprof.merge.text.phrases import brief
from distprof.merge.text.rates import of_peak
from distprof.merge.totals.step_time import LIGHT
from distprof.units import UNKNOWN, counted, duration, percent, si, spans

ALIKE, NAMED = 0.75, 4
"""Other modules changed alike if their change is at least this share of the largest; how many of them are named."""
JOB = (RANKS, TOPOLOGY, BATCH, PARAMETER_TYPES, PRODUCT_TYPES)
"""Facts in which runs of two different jobs differ."""
MORE_CALLS = 0.1
"""If the numbers of collectives differ by more than this share, the jobs are different, too."""
RATES = {"samples_per_second": "samples/s", "flops_per_second": "FLOP/s", "mfu": "MFU"}
SENTENCES = {
    "world_size": "{base} ranks against {new}: times are means per rank and step, and groups with the same name are "
                  "compared although their sizes differ",
    "same_run": "both sides are the same run",
    "other_model": "the models differ: of {base} and {new} modules, {both} are in both; the others cannot be compared",
    "modules_differ": "modules: {base} only on the base side, {new} only on the new side; {changed} of those on both "
                      "sides differ in class or parameters",
    "plans": "recorded with different plans ({base} against {new}); step times still come from the same passes",
    "unsure_modules": "modules that were moved or renamed without a clear counterpart: {paths}",
    "foreign": "{side} {path}: foreign traces, without modules, parameters and FLOPs",
    "no_time_pass": "{side} {path}: no step was timed without the profiler; record some with --steps time=10",
    "no_timeline": "{side} {path}: no step with a timeline was recorded, so modules, operators, collectives and "
                   "exposed communication are not compared; record some with --steps trace=6",
    "no_steps": "{side} {path}: the traces mark no comparable steps, so operators, collectives and exposed "
                "communication are not compared",
    "no_modules": "{side} {path}: timelines show no module calls, so modules are not compared",
    "one_rank": "{side} {path}: one rank, so there is no communication",
    "no_collectives": "{side} {path}: nothing was communicated in the steps with a timeline",
    "some_timelines": "{side} {path}: only {ranks} of {of} ranks have a timeline; parts cover only these",
}
"""Code of a note -> its sentence."""


def headlines(found: Difference) -> Iterator[str]:
    """Yields the first lines."""
    if any(note.code == "same_run" for note in found.notes):
        yield "both sides are the same run, so no change to the job can show here"
    if other := list(other_job(found)):
        yield f"these are two different jobs: {'; '.join(other)}"
    if found.step is None:
        yield "step times cannot be compared: the runs have no pass in common"
    else:
        yield f"step {from_to(found.step, brief)}: {in_words(found.step)}   ({_steps(found)})"
    if found.cpu is not None:
        said = in_words(found.cpu) if found.shortage is None else _unjudged(found.cpu, found.shortage)
        yield f"CPU time of the thread that runs the steps: {from_to(found.cpu, duration)}: {said}"
    for name, title in RATES.items():
        if found.rates[name].difference is not None:
            change, form = found.rates[name], of_peak if name == "mfu" else si
            yield f"{title} {from_to(change, form)}: {in_words(change, slower=('higher', 'lower'))}"
    if found.modules is not None and found.modules.rows:
        yield from _first_module(found, found.modules.rows[0])


def other_job(found: Difference) -> Iterator[str]:
    """Yields what shows that the sides are different jobs: `ranks 2 -> 4`, `samples per step of a rank 8 -> 16`."""
    known = {fact.name: fact for fact in found.facts}
    yield from (f"{name} {fact.base} -> {fact.new}" for name in JOB if (fact := known.get(name)) is not None
                and fact.base is not None and fact.new is not None and fact.base != fact.new)
    calls = [change for (_, _, what), change in found.collective_counts.items() if what == "calls"]
    base, new = (sum(getattr(change, side) or 0.0 for change in calls) for side in ("base", "new"))
    if base and new and abs(new / base - 1) > MORE_CALLS:
        yield f"collectives per step of a rank {base:.3g} -> {new:.3g}"


def _steps(found: Difference) -> str:
    """Returns `34 steps`, and which ones, if a side lacks steps of the usual passes."""
    steps = counted(found.num_steps, "step")
    if not set(found.step_passes) <= set(LIGHT):
        return f"{steps} with the profiler on{_lacking(found, LIGHT)}"
    used = {name for run in found.runs for name in run.passes if name in LIGHT}
    if used == set(found.step_passes):
        return steps
    all_have = ", which all runs have" if any(used - set(run.passes) for run in found.runs) else ""
    return f"{steps} of the {' and '.join(found.step_passes)} pass{all_have}"


def _lacking(found: Difference, names: Sequence[str]) -> str:
    return ", as a side has no others" if any(set(run.passes) & set(names) for run in found.runs) else ""


def _first_module(found: Difference, first: Row) -> Iterator[str]:
    """Yields the module with the largest change, if that is certain; together with others that changed as much."""
    alike = _alike(found.modules.rows, first) if found.modules is not None else []
    if alike:
        yield _alike_line([first, *alike])
        return
    flops = found.own_flops.get(str(first.item))
    work = "" if flops is None or flops.verdict != "changed" else f"{ratio_of(flops)} FLOPs in the module itself"
    if first.own.verdict == "changed":
        yield (f"the module that changed most is {module_name(first.item)}: {signed(first.own.difference)} per "
               f"step{f', with {work}' if work else ''}")
    elif work:
        yield (f"module {module_name(first.item)} does different work: {work}; module times do not differ beyond noise")


def _unjudged(change: Change, shortage: tuple[float, float]) -> str:
    """Returns why the CPU time cannot be judged."""
    ratio = f"{100 * change.ratio:+.1f} %, " if change.ratio is not None else ""
    return (f"{ratio}not judged: threads lacked a CPU for {percent(shortage[0])} of a step on the base side and "
            f"{percent(shortage[1])} on the new side, and threads that share a CPU run more slowly")


def _alike(rows: Sequence[Row], first: Row) -> list[Row]:
    """Returns other modules that changed about as much as the one that changed most."""
    most = first.own.difference or 0.0
    return [row for row in rows if row is not first and row.own.verdict == first.own.verdict == "changed"
            and (row.own.difference or 0.0) / most >= ALIKE]


def _alike_line(rows: Sequence[Row]) -> str:
    changes = sorted((row.own.difference or 0.0 for row in rows), key=abs)
    names = [module_name(row.item) for row in rows]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (f"{len(rows)} modules changed by about the same amount, {signed(changes[0])} to {signed(changes[-1])} per "
            f"step each: {', '.join(names[:NAMED])}{more}")


def in_words(change: Change, slower: tuple[str, str] = ("slower", "faster")) -> str:
    """Returns `8.2 % slower [+6.1, +10.4 %]; p = 0.0003`, or that it is noise."""
    if change.difference is None:
        return "unknown on at least one side"
    interval = "" if change.low_ratio is None or change.high_ratio is None else (
        f" [{100 * change.low_ratio:+.1f}, {100 * change.high_ratio:+.1f}]")
    ratio = f"{100 * change.ratio:+.1f} %" if change.ratio is not None else "from 0"
    match change.verdict:
        case "same":
            return "equal"
        case "unknown":
            return f"{ratio}; too few steps or runs, or too much scatter, to tell this from noise"
        case "noise":
            return f"no difference beyond noise: {ratio}{interval}"
        case _:
            word = slower[0] if change.difference > 0 else slower[1]
            return f"{word}: {ratio}{interval}, {_p(change.p)}"


def _p(p: float | None) -> str:
    return "counted" if p is None else "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def from_to(change: Change, shown: Any) -> str:
    """Returns `1.20 ms -> 1.30 ms`."""
    return " -> ".join(UNKNOWN if value is None else shown(value) for value in (change.base, change.new))


def signed(ns: float | None) -> str:
    """Returns `+1.20 ms`, `-0.40 ms`."""
    return duration(ns) if ns is None or ns < 0 else f"+{duration(ns)}"


def module_name(item: Any) -> str:
    """Returns the name of a module in a table, which is never empty."""
    return "(backward outside modules)" if item is None else item or "(root)"


def ratio_of(change: Change) -> str:
    """Returns the relative change of a count, like `+12.5 %`."""
    return "unknown on at least one side" if change.difference is None else (
        f"{100 * change.ratio:+.1f} %" if change.ratio is not None else "from 0")


def note_lines(notes: Iterable[Note]) -> Iterator[str]:
    """Yields notes as sentences."""
    for note in notes:
        fields = {name: spans(value) if name == "ranks" else ", ".join(value) if isinstance(value, list) else value
                  for name, value in note.fields.items()}
        yield SENTENCES[note.code].format(side=note.side, **fields)


def noise_line(noise: Noise) -> str:
    """Returns what is assumed or measured as noise."""
    if noise.is_measured:
        return (f"noise: how much the {len(noise.base_queued)} + {len(noise.new_queued)} runs differ within each side; "
                "each run counts once")
    queued = max((one or 0.0 for one in (*noise.base_queued, *noise.new_queued)), default=0.0)
    by_queue = "" if queued < 0.005 else (
        f", plus {percent(noise.of_queue * queued)} because ranks lacked a CPU for {percent(queued)} of a step")
    return ("one run per side does not show how much runs vary: in addition to the scatter of steps, distprof assumes "
            f"a standard deviation of {percent(noise.assumed)}{by_queue}. Measure it with several runs per side "
            "(--base A1 A2 --new B1 B2), or set it with --noise")
