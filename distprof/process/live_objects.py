"""Finds objects of this process by their type, also where nobody tells where they are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def live_objects(is_wanted: Callable[[type], bool]) -> list[Any]:
    """All that the garbage collector knows of types that are wanted; those that were frozen with `gc.freeze` are not.

    A job may have millions of objects, so that only their types, of which there are few, are looked at one by one. The
    types are not asked with `isinstance`: some objects answer that by running code.
    """
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if is_wanted(kind)}
    return [thing for thing in things if type(thing) in kinds] if kinds else []


FEW = 3
"""Classes that each reference of each object is compared with sooner than all objects are listed."""


def live_instances(base: type) -> list[Any]:
    """As `live_objects`, of a class and all that derive from it, without a look at the types of all objects."""
    kinds = _with_subclasses(base)
    # an object refers to its type
    things = gc.get_referrers(*kinds) if len(kinds) <= FEW else gc.get_objects()
    return [thing for thing in things if type(thing) in kinds]


class YoungObjects:
    """What was made since a moment, as long as the garbage collector has not put it among the old objects.

    A job may have millions of objects, of which few are young: who wants only those need not look at the others.
    """

    def __init__(self) -> None:
        self._collections = _of_older()

    def instances(self, base: type) -> list[Any]:
        """As `live_instances`, at least of those that were made since."""
        if sys.version_info >= (3, 14) or _of_older() != self._collections:
            return live_instances(base)
        kinds = _with_subclasses(base)
        return [thing for young in (0, 1) for thing in gc.get_objects(generation=young) if type(thing) in kinds]


def _of_older() -> list[int]:
    """How often objects became old."""
    return [one["collections"] for one in gc.get_stats()[1:]]


def _with_subclasses(base: type) -> set[type]:
    return {base}.union(*map(_with_subclasses, type.__subclasses__(base)))
