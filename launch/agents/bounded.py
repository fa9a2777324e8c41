"""Answers of limited size for coding agents: as many rows of a table as fit, and a head with the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_BYTES = 8192
RESERVED = 1024
"""Bytes of `MOST_BYTES` that are reserved for the keys of the rows and the description of what was left out."""
HEAD = 0.45
"""Maximum fraction of the remaining bytes for the head, if there are rows."""
LEVELS = ((12, 300), (6, 300), (4, 200), (2, 120), (1, 60), (0, 40))
"""Maximum number of items of a list and of characters of a text; the first level that fits is used."""
MOST_NAMED = 10
"""Maximum number of shortened lists that are named."""


@dataclass(slots=True, kw_only=True)
class _Shortened:
    """Shortens lists and texts in values, and remembers which lists it shortened."""

    most_items: int
    most_chars: int
    lists: dict[str, str] = field(default_factory=dict)

    def of(self, value: object, path: str) -> Any:
        """Returns a value with short lists and texts, and without keys whose value is unknown or empty."""
        if isinstance(value, Mapping):
            pairs = ((str(name), self.of(one, f"{path}.{name}" if path else str(name))) for name, one in value.items())
            return {name[:self.most_chars]: one for name, one in pairs if not _is_nothing(one)}
        if isinstance(value, list | tuple):
            if len(value) > self.most_items:
                self.lists[path] = f"{self.most_items} of {len(value)}"
            return [self.of(one, path) for one in value[:self.most_items]]
        if isinstance(value, str):
            return value if len(value) <= self.most_chars else f"{value[:self.most_chars - 3]}..."
        return _number(value)


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, list | dict | str) and not value)


def _number(value: object) -> Any:
    """Rounds floats to 6 digits, or to integers from 1e6; returns None for infinities and NaN."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value) if abs(value) >= 1e6 else float(f"{value:.6g}")


def answer(head: Mapping[str, Any], name: str = "", rows: Sequence[Any] = (), *, offset: int = 0,
           hint: str = "") -> str:
    """Returns JSON of at most `MOST_BYTES`.

    Args:
        head: Data beside the rows; long lists in it are shortened.
        name: Key of the rows; '' if there are none.
        rows: All rows.
        offset: Index of the first row to include.
        hint: How to request fewer or other rows.
    """
    most = MOST_BYTES - RESERVED
    found, lists = _fitting(head, most * HEAD if name else most)
    if not name:
        return _whole(found, lists, {}, "")
    kept, of_rows = _fitting_rows(rows[offset:], name, most - len(_encoded(found).encode()))
    after = offset + len(kept)
    total = {"total": len(rows), "from": offset, "shown": len(kept)}
    more = {"next_offset": after} if kept and after < len(rows) else {}
    is_cut = bool(more) or offset > 0 or bool(lists | of_rows)
    return _whole({name: kept} | found | {f"num_{name}": len(rows)}, lists | of_rows, total | more if is_cut else {},
                  hint)


def _whole(content: Mapping[str, Any], lists: Mapping[str, str], rows: Mapping[str, int], hint: str) -> str:
    """Returns JSON of the content and of what was left out, which names as many shortened lists as fit."""
    for most_named in range(MOST_NAMED, -1, -1):
        text = _encoded({**content, **_left_out(lists, rows, hint, most_named)})
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _fitting(value: object, most: float) -> tuple[Any, dict[str, str]]:
    for shortened in _levels():
        found = shortened.of(value, "")
        if len(_encoded(found).encode()) <= most:
            return found, shortened.lists
    return {}, {"": "too long to be shown"}


def _fitting_rows(rows: Sequence[Any], name: str, most: int) -> tuple[list[Any], dict[str, str]]:
    """Returns as many rows as fit, but at least one, which is shortened as much as necessary."""
    for shortened in _levels():
        kept, left = list[Any](), most
        for row in rows:
            one = shortened.of(row, name)
            left -= len(_encoded(one).encode()) + 1
            if left < 0:
                break
            kept.append(one)
        if kept or not rows:
            return kept, shortened.lists
    return [], {name: "too long to be shown"}


def _levels() -> Iterator[_Shortened]:
    return (_Shortened(most_items=items, most_chars=chars) for items, chars in LEVELS)


def _left_out(lists: Mapping[str, str], rows: Mapping[str, int], hint: str, most_named: int) -> dict[str, Any]:
    """Returns the description of what was left out."""
    if not lists and not rows:
        return {}
    short = {name[:60]: lists[name] for name in sorted(lists, key=lambda one: (one.count("."), one))[:most_named]}
    more = len(lists) - len(short)
    return {"left_out": {**({"rows": dict(rows)} if rows else {}), **({"shortened_lists": short} if short else {}),
                         **({"more_shortened_lists": more} if more else {}), **({"hint": hint[:200]} if hint else {})}}


def _encoded(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
