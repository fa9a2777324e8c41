"""Pairs the modules of two runs: by name, or, if names differ, by what the modules are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from distprof.merge.difference.observed import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The properties by which a module can be recognised."""

    path: str
    class_name: str
    params: float | None
    flops: float | None
    """FLOPs of a step's forward calls on a rank; None if they were not counted."""
    shapes: tuple[str, ...] = ()
    """Names and shapes of its own parameters."""

    @property
    def nature(self) -> Hashable:
        """Equal for modules that can only be distinguished by name and place."""
        return self.class_name, self.params, self.flops, self.shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Paths of one run -> paths of the other."""

    pairs: Mapping[str, str]
    moved: Mapping[str, str]
    """Pairs with different names."""
    unsure: tuple[str, ...] = ()
    """Paths that only one run has although the other has similar modules: which belong together is unclear."""
    only_in_base: tuple[str, ...] = ()
    only_in_new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Paths in the base of modules whose class or parameters, including inner modules, differ."""

    @property
    def to_base(self) -> Mapping[str, str]:
        """Path in the new run -> path in the base."""
        return {new: base for base, new in self.pairs.items()}


def modules_in(run: Observed) -> list[Module]:
    """Returns the modules of a run in the order of the model, first stage first."""
    if run.tables is None:
        return []
    own: dict[str, dict[str, str]] = defaultdict(dict)
    held = run.tables.parameters.sums.filter(pl.col("rank") == pl.col("rank").min().over("module_path"))
    for path, name, shape in held.select("module_path", "name", "shape").iter_rows():
        own[path][name] = shape
    found: dict[str, Module] = {}
    for one in run.modules.sort("stage", maintain_order=True).iter_rows(named=True):
        path = one["module_path"]
        found.setdefault(path, Module(
            path=path, class_name=one["class_name"], params=one["params_mean"], flops=one["fwd_flops_mean"],
            shapes=tuple(f"{name} {shape}" for name, shape in sorted(own[path].items()))))
    return list(found.values())


def paired(base: Sequence[Module], new: Sequence[Module]) -> Pairing:
    """Pairs the modules of two runs.

    Modules with the same name belong together. Of the others, modules with the same class, names and shapes of
    parameters, and the same parameters and FLOPs including inner modules, are the same module under another name if
    each run has equally many of them: then they are paired in their order. This is tried first within paired parents,
    then among all remaining modules with parameters.

    Args:
        base: Modules of one run, in the order of the model.
        new: Modules of the other.
    """
    named = {one.path for one in new}
    pairs = {one.path: one.path for one in base if one.path in named}
    left, right = ([one for one in modules if one.path not in pairs] for modules in (base, new))
    while True:
        found = dict(_pairs(left, right, _under(pairs), _parent)) or dict(_pairs(
            filter(_has_params, left), right, None, None))
        found = {path: other for path, other in found.items() if _depth(path) == min(map(_depth, found))}
        if not found:
            break
        pairs |= found
        left = [one for one in left if one.path not in found]
        right = [one for one in right if one.path not in set(found.values())]
    natures = {one.nature for one in right}
    unsure = tuple(one.path for one in left if one.nature in natures)
    order = [one.path for one in base if one.path in pairs]
    natures_of = {one.path: (one.class_name, one.params) for one in new}
    changed = tuple(one.path for one in base if one.path in pairs
                    and natures_of[pairs[one.path]] != (one.class_name, one.params))
    return Pairing(pairs={path: pairs[path] for path in order},
                   moved={path: pairs[path] for path in order if pairs[path] != path}, unsure=unsure,
                   changed=changed, only_in_base=tuple(one.path for one in left),
                   only_in_new=tuple(one.path for one in right))


def _has_params(one: Module) -> bool:
    return bool(one.params)


def _under(pairs: Mapping[str, str]) -> Callable[[str], str | None]:
    """Returns a function from a base module to the path of its parent in the other run, None if not paired."""
    return lambda path: pairs.get(_parent(path))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _depth(path: str) -> int:
    return path.count(".") + bool(path)


def _pairs(left: Iterable[Module], right: Iterable[Module], place: Callable[[str], str | None] | None,
           other_place: Callable[[str], str | None] | None) -> Iterable[tuple[str, str]]:
    """Yields pairs of modules of one nature, and of one place if given, if both sides have equally many."""
    ours, theirs = _grouped(left, place), _grouped(right, other_place)
    for key, paths in ours.items():
        if len(paths) == len(theirs.get(key, ())) and (place is None or key[0] is not None):
            yield from zip(paths, theirs[key], strict=True)


def _grouped(modules: Iterable[Module],
             place: Callable[[str], str | None] | None) -> dict[tuple[str | None, Hashable], list[str]]:
    found: dict[tuple[str | None, Hashable], list[str]] = defaultdict(list)
    for one in modules:
        found[place(one.path) if place is not None else None, one.nature].append(one.path)
    return found
