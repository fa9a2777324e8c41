"""Which modules of a tree are shown: nodes and a user's wishes come in, lines with their guides go out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distprof.errors import UsageError
from distprof.reporters.row import Row
from distprof.reporters.tree import Node, build, collapse

SORTS: dict[str, tuple[str, ...]] = {
    "path": (),
    "params": ("params",),
    "macs": ("macs",),
    "flops": ("fwd_flops", "bwd_flops", "recompute_flops"),
    "fwd": ("fwd_time_ns",),
    "bwd": ("bwd_time_ns",),
    "time": ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns"),
}
"""What can be sorted by -> the columns that are added up for it; path is the order of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a user wants to see of a tree."""

    depth: int | None = 3
    """Levels below the root; None: all."""
    top: int | None = None
    """Only this many modules, the largest by `sort`, and those they stand in; None: all."""
    sort: str = "path"
    """One of `SORTS`: siblings stand largest first."""
    columns: Sequence[str] | None = None
    """Keys of `columns.COLUMNS`; None: whatever is known."""
    collapse: bool = True
    """Neighbours that are equal in every number are one line."""

    def __post_init__(self) -> None:
        """Checks what was asked for.

        Raises:
            UsageError: A number is out of range, or there is no such order.
        """
        if self.sort not in SORTS:
            raise UsageError(f"expected one of {', '.join(SORTS)} to sort by, found {self.sort!r}")
        for name, number, least in (("depth", self.depth, 0), ("top", self.top, 1)):
            if number is not None and number < least:
                raise UsageError(f"expected {name} to be at least {least}, found {number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the tree."""

    guide: str
    """Branches in front of the name."""
    name: str
    row: Row
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is shown, and what is not."""

    lines: tuple[Line, ...]
    num_modules: int
    """All there are."""
    num_shown: int
    """Those the lines stand for."""
    deepest: int
    """Depth of the deepest module there is."""


def select(rows: Sequence[Row], view: View) -> Selection:
    """Builds the tree and takes what the view asks for.

    Raises:
        UsageError: Nothing is known of what to sort by.
    """
    keys = SORTS[view.sort]
    if keys and rows and all(row.values.get(key) is None for row in rows for key in keys):
        raise UsageError(f"expected modules whose {view.sort} is known to sort by it, found none",
                         hint=f"known here: {', '.join(name for name in SORTS if _known(rows, name))}")
    roots = build(rows)
    deepest = max((depth for root in roots for _, depth, _ in _levels(root)), default=0)
    if view.collapse:
        roots = [node for root in roots for node in collapse([root])]
    for root in roots if keys else ():
        for node in root.walk():
            node.children.sort(key=lambda child: -_weight(child, keys))
    chosen = _chosen(roots, view)
    lines = tuple(line for root in roots for line in _lines(root, chosen, "", ""))
    shown = sum(times for root in roots for node, _, times in _levels(root) if id(node) in chosen)
    return Selection(lines=lines, num_modules=len(rows), num_shown=shown, deepest=deepest)


def _known(rows: Sequence[Row], sort: str) -> bool:
    keys = SORTS[sort]
    return not keys or any(row.values.get(key) is not None for row in rows for key in keys)


def _weight(node: Node, keys: Sequence[str]) -> float:
    return sum(node.row.values.get(key) or 0 for key in keys)


def _levels(node: Node, depth: int = 0, times: int = 1) -> Iterator[tuple[Node, int, int]]:
    """Node, its depth, and how many modules it stands for; parents first."""
    times *= node.repeats
    yield node, depth, times
    for child in node.children:
        yield from _levels(child, depth + 1, times)


def _chosen(roots: list[Node], view: View) -> set[int]:
    """Ids of the nodes to show."""
    visible = [node for root in roots for node, depth, _ in _levels(root) if view.depth is None or depth <= view.depth]
    if view.top is None:
        return {id(node) for node in visible}
    keys = SORTS[view.sort]
    # the order is stable: of equals the parent comes first
    largest = {id(node) for node in sorted(visible, key=lambda node: -_weight(node, keys))[:view.top]}
    return {id(node) for node in visible if any(id(below) in largest for below in node.walk())}


def _lines(node: Node, chosen: set[int], guide: str, rest: str) -> Iterator[Line]:
    """`guide` stands before the node itself, `rest` before those below it."""
    if id(node) not in chosen:
        return
    yield Line(guide=guide, name=node.name, row=node.row, repeats=node.repeats)
    children = [child for child in node.children if id(child) in chosen]
    for child in children:
        last = child is children[-1]
        yield from _lines(child, chosen, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
