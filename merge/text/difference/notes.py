"""Sentences on what two runs cannot be compared in, and on the noise between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distprof.merge.difference.facts import Note
from distprof.merge.difference.samples import Noise
from distprof.units import percent, spans

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
"""By code."""


def note_lines(notes: Iterable[Note]) -> Iterator[str]:
    """Notes in sentences."""
    for note in notes:
        fields = {name: spans(value) if name == "ranks" else ", ".join(value) if isinstance(value, list) else value
                  for name, value in note.fields.items()}
        yield SENTENCES[note.code].format(side=note.side, **fields)


def noise_line(noise: Noise) -> str:
    """What is taken for noise."""
    if noise.is_measured:
        return (f"noise: how much the {len(noise.base_queued)} + {len(noise.new_queued)} runs differ within each side; "
                "each run counts once")
    queued = max((one or 0.0 for one in (*noise.base_queued, *noise.new_queued)), default=0.0)
    by_queue = "" if queued < 0.005 else (
        f", plus {percent(noise.of_queue * queued)} because ranks lacked a CPU for {percent(queued)} of a step")
    return ("one run per side does not show how much runs vary: in addition to the scatter of steps, distprof assumes "
            f"a standard deviation of {percent(noise.assumed)}{by_queue}. Measure it with several runs per side "
            "(--base A1 A2 --new B1 B2), or set it with --noise")
