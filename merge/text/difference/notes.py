"""Sentences on what two runs cannot be compared in, and on the noise between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distprof.merge.difference.facts import Note
from distprof.merge.difference.noise import Noise
from distprof.units import percent, spans

SENTENCES = {
    "world_size": "{base} ranks against {new}: times are means of a rank and step, and groups of one name are "
                  "compared although their sizes differ",
    "same_run": "both sides are of the same run",
    "other_model": "the models differ: {both} modules are in both, of {base} and {new}; times of the others have no "
                   "counterpart",
    "modules_differ": "modules: {base} are in the base only, {new} in the new side only, and {changed} of those in "
                      "both have another class or other parameters",
    "plans": "recorded with other plans ({base} against {new}): step times are of steps of one pass all the same",
    "unsure_modules": "modules that were moved or renamed, but which is which is not clear: {paths}",
    "foreign": "{side} {path}: traces of another program, without modules, parameters and FLOPs",
    "no_time_pass": "{side} {path}: no step of the time pass was recorded, so MFU and samples/s are not known; "
                    "--steps time=10 records some",
    "no_timeline": "{side} {path}: no step with a timeline was recorded, so modules, operators, collectives and "
                   "exposed communication are not compared; --steps trace=6 records some",
    "no_steps": "{side} {path}: the traces mark no steps that can be compared, so operators, collectives and exposed "
                "communication are not",
    "no_modules": "{side} {path}: timelines show no calls of modules, so modules are not compared",
    "one_rank": "{side} {path}: one rank, so there is no communication",
    "no_collectives": "{side} {path}: nothing was communicated in the steps with a timeline",
    "some_timelines": "{side} {path}: only {ranks} of {of} ranks have a timeline, and parts are of these alone",
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
        return (f"noise is how much the {len(noise.base_queued)} + {len(noise.new_queued)} runs differ within their "
                "sides: a run counts once")
    queued = max((one or 0.0 for one in (*noise.base_queued, *noise.new_queued)), default=0.0)
    by_queue = "" if queued < 0.005 else (
        f", and {percent(noise.of_queue * queued)} more as ranks were without a processor for {percent(queued)} of a "
        "step")
    return ("one run a side does not show how much runs differ by themselves: beside the scatter of steps, a standard "
            f"deviation of {percent(noise.assumed)} is assumed{by_queue}. Several runs a side measure it (--base A1 A2 "
            "--new B1 B2), --noise sets it")
