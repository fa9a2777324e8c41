"""Selects the collectives of the op, group and step that a user asks for, and names groups."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.errors import UsageError
from distprof.merge.run.group_ranks import with_lists
from distprof.units import spans

LISTED = 8
"""Number of names that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which collectives `distprof comms` shows; None means all."""

    op: str | None = None
    group: str | None = None
    """Name or description of a process group, or both with its ranks, as printed."""
    step: int | None = None

    @property
    def is_of_some(self) -> bool:
        """True if the choice may leave out collectives of a step."""
        return self.op is not None or self.group is not None


def chosen(rows: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """Returns the chosen rows.

    Args:
        rows: `MERGED_COLLECTIVES`.
        choice: What was asked for.

    Raises:
        UsageError: There is no such op, group or step.
    """
    if choice.op is not None:
        _check("--op", choice.op, rows["op"].unique().drop_nulls().sort().to_list())
        # the receive of a send belongs to it
        rows = rows.filter((pl.col("op") == choice.op).any().over("collective"))
    if choice.group is not None:
        groups = group_names(rows)
        _check("--group", choice.group, [name for names in groups.values() for name in names])
        keys = [key for key, names in groups.items() if choice.group in names]
        rows = rows.filter(group_key().is_in(keys))
    if choice.step is not None:
        steps = rows["step"].unique().drop_nulls().sort().to_list()
        if choice.step not in steps:
            raise UsageError(f"step {choice.step} has no communication",
                             hint=f"steps with communication: {spans(steps)}" if steps else
                             "steps are unknown: leave out --step")
        rows = rows.filter(pl.col("step") == choice.step)
    return rows


def group_key() -> pl.Expr:
    """Returns a text that is equal for rows of one process group: its name and its members."""
    return pl.concat_str(pl.col("group").cast(pl.String).fill_null(""),
                         pl.col("group_ranks").cast(pl.String).fill_null("?"), separator="|")


def group_names(rows: pl.DataFrame) -> dict[str, list[str]]:
    """Returns for each group key the names that a user may use for the group, the printed one first."""
    groups = rows.group_by(group_key().alias("key"), maintain_order=True).agg(
        pl.col("group", "group_description", "group_ranks").first())
    found = {}
    for key, name, description, ranks in with_lists(groups).iter_rows():
        names = [group_label(name, description, ranks), description, name]
        found[key] = list(dict.fromkeys(one for one in names if one))
    return found


def group_label(name: str | None, description: str | None, ranks: Sequence[int] | None) -> str:
    """Formats a group as `mesh_tp (0-1)`: its description, or else its name, and its ranks."""
    title = description if description and description != "undefined" else name
    members = f"({spans(sorted(ranks))})" if ranks is not None else ""
    return " ".join(filter(None, (title, members))) or "-"


def _check(flag: str, value: str, known: Sequence[str]) -> None:
    if value in known:
        return
    if not known:
        raise UsageError(f"{flag} {value} matches nothing: no communication has one")
    near = difflib.get_close_matches(value, known, n=1)
    names = list(dict.fromkeys(known))
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    hint = f"did you mean {flag} {near[0]!r}?" if near else f"choose from {', '.join(names[:LISTED])}{more}"
    raise UsageError(f"{flag} {value!r} matches nothing that was recorded", hint=hint)
