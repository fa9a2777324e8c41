"""Finds objects of this process by their type, without a reference to them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def live_objects(is_wanted: Callable[[type], bool]) -> list[Any]:
    """Returns all objects that the garbage collector tracks whose type is wanted, except those frozen by `gc.freeze`.

    A job may have millions of objects but has few types, so each type is tested once. `isinstance` is not used because
    some objects run code when asked.
    """
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if is_wanted(kind)}
    return [thing for thing in things if type(thing) in kinds] if kinds else []


FEW = 3
"""Up to this many classes, `gc.get_referrers`, which compares each reference of each object with each class, is faster
than listing all objects."""


def live_instances(base: type) -> list[Any]:
    """Like `live_objects` for a class and its subclasses, but usually without looking at the types of all objects."""
    kinds = _with_subclasses(base)
    # an object refers to its type
    things = gc.get_referrers(*kinds) if len(kinds) <= FEW else gc.get_objects()
    return [thing for thing in things if type(thing) in kinds]


class YoungObjects:
    """Objects created since the constructor, unless the garbage collector has moved them to an old generation.

    A job may have millions of objects, of which few are young: searching only these is faster.
    """

    def __init__(self) -> None:
        self._collections = _of_older()

    def instances(self, base: type) -> list[Any]:
        """Returns at least the instances created since the constructor, or all of them as `live_instances` does."""
        if sys.version_info >= (3, 14) or _of_older() != self._collections:
            return live_instances(base)
        kinds = _with_subclasses(base)
        return [thing for young in (0, 1) for thing in gc.get_objects(generation=young) if type(thing) in kinds]


def _of_older() -> list[int]:
    """Returns how often each of the older generations was collected."""
    return [one["collections"] for one in gc.get_stats()[1:]]


def _with_subclasses(base: type) -> set[type]:
    return {base}.union(*map(_with_subclasses, type.__subclasses__(base)))
