"""Finds objects of this process by their type, also where nobody tells where they are."""

from __future__ import annotations

import gc
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
