"""Collects what runs are (sizes, versions, devices, arguments), and why some of what they did cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from distprof.contract.mesh import AXES
from distprof.contract.run_json import job_command
from distprof.merge.difference.observed import Observed
from distprof.merge.difference.pairing import Pairing
from distprof.merge.totals.step_time import LIGHT
from distprof.units import spans

Side = Literal["base", "new"]
RANKS, TOPOLOGY, BATCH = "ranks", "topology", "samples per step of a rank"
PARAMETER_TYPES, PRODUCT_TYPES = "parameter types", "types of products"
"""Names of facts."""
FEW = 0.5
"""Share of the modules that must be in both runs for these to be of one model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that describes the runs or was given when they were started."""

    name: str
    base: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What cannot be compared, or what to keep in mind, as a code and its fields."""

    code: str
    side: Side | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def facts_of(base: Sequence[Observed], new: Sequence[Observed]) -> list[Fact]:
    """Returns what describes the sides, whether they differ or not; several values on a side are all listed."""
    sides = [[dict(_facts(run)) for run in side] for side in (base, new)]
    names = dict.fromkeys(name for side in sides for facts in side for name in facts)
    return [Fact(name=name, base=_joined(facts.get(name) for facts in sides[0]),
                 new=_joined(facts.get(name) for facts in sides[1])) for name in names]


def _joined(values: Iterable[str | None]) -> str | None:
    found = list(dict.fromkeys(value for value in values if value is not None))
    return ", ".join(found) if found else None


def _facts(run: Observed) -> Iterator[tuple[str, str]]:
    about, ranks = run.run, [rank.recorded for rank in run.run.ranks if rank.recorded is not None]
    yield RANKS, str(about.world_size)
    if about.topology_known:
        yield TOPOLOGY, " x ".join(f"{axis} {about.topology[axis]}" for axis in AXES if axis in about.topology)
    yield "hosts", str(len({rank.host for rank in about.ranks if rank.host}) or 1)
    devices = sorted({rank.device_name for rank in about.ranks if rank.device_name})
    if devices:
        yield "device", ", ".join(devices)
    for name in sorted({name for rank in ranks for name in rank.versions}):
        yield name, ", ".join(sorted({rank.versions[name] for rank in ranks if name in rank.versions}))
    if run.launched is not None and run.launched.argv:
        yield "arguments", " ".join(job_command(run.launched.argv))
    if (work := run.workload_in("samples")) is not None:
        yield BATCH, f"{work.most_often:.3g}"
    for name, found in (("steps", {rank.plan for rank in ranks if rank.plan}),
                        (PARAMETER_TYPES, {kind for rank in ranks if rank.params for kind in rank.params.dtypes}),
                        (PRODUCT_TYPES, _product_types(run)),
                        ("TF32", {kind for rank in ranks for kind, is_on in rank.tf32.items() if is_on})):
        if found:
            yield name, ", ".join(sorted(found))


def _product_types(run: Observed) -> set[str]:
    """Returns the dtypes in which counted work was done; autocast changes them, but not the parameters."""
    if run.tables is None:
        return set()
    flops = run.tables.operators.model_flops
    return set(flops.drop_nulls("dtype").filter(pl.col("flops") > 0)["dtype"].cast(pl.String).to_list())


def notes_of(base: Sequence[Observed], new: Sequence[Observed], pairing: Pairing) -> list[Note]:
    """Returns notes on what cannot be compared."""
    found = [note for side, runs in (("base", base), ("new", new)) for run in runs for note in _of_run(side, run)]
    sizes = [sorted({run.run.world_size for run in side}) for side in (base, new)]
    if sizes[0] != sizes[1]:
        found.append(Note(code="world_size", fields={"base": spans(sizes[0]), "new": spans(sizes[1])}))
    if _identities(base) & _identities(new):
        found.append(Note(code="same_run"))
    both, only = len(pairing.pairs), (len(pairing.only_in_base), len(pairing.only_in_new))
    if all(run.has_module_table for run in (base[0], new[0])):
        if both < FEW * (both + max(only)):
            found.append(Note(code="other_model", fields={"both": both, "base": both + only[0], "new": both + only[1]}))
        if any(only) or pairing.changed:
            found.append(Note(code="modules_differ", fields={"base": only[0], "new": only[1],
                                                             "changed": len(pairing.changed)}))
    plans = [{plan for run in side for plan in _plans(run)} for side in (base, new)]
    if all(plans) and plans[0] != plans[1]:
        found.append(Note(code="plans", fields={"base": ", ".join(sorted(plans[0])),
                                                "new": ", ".join(sorted(plans[1]))}))
    if pairing.unsure:
        found.append(Note(code="unsure_modules", fields={"paths": list(pairing.unsure)}))
    return list({repr(note): note for note in found}.values())


def _identities(runs: Sequence[Observed]) -> set[str]:
    """Returns identities that copies of a run share; traces of other programs only have their path."""
    return {run.run.run_id or str(run.path.resolve()) for run in runs}


def _plans(run: Observed) -> list[str]:
    return [rank.recorded.plan for rank in run.run.ranks if rank.recorded is not None and rank.recorded.plan]


def _of_run(side: Any, run: Observed) -> Iterator[Note]:
    where = {"path": str(run.path)}
    if run.tables is None:
        yield Note(code="foreign", side=side, fields=where)
    elif not set(run.passes) & set(LIGHT):
        yield Note(code="no_time_pass", side=side, fields=where)
    if not run.has_timeline:
        yield Note(code="no_timeline" if run.tables is not None else "no_steps", side=side, fields=where)
    elif run.tables is None and not run.has_modules:
        yield Note(code="no_modules", side=side, fields=where)
    if run.run.world_size == 1:
        yield Note(code="one_rank", side=side, fields=where)
    elif run.has_timeline and run.collectives is None:
        yield Note(code="no_collectives", side=side, fields=where)
    if len(run.program.did) < len(run.run.ranks) and run.has_timeline:
        yield Note(code="some_timelines", side=side,
                   fields={**where, "ranks": sorted(run.program.did), "of": len(run.run.ranks)})
