"""Module trees: built from rows, with equal neighbours folded and modules selected by depth, size and order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from distprof.errors import UsageError

MODEL_PREFIX = re.compile(r"model\d+:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One module and its values, from a count or a merged run."""

    path: str
    """Path from the root; the root is '', a second root model is 'model1:'."""
    class_name: str
    values: Mapping[str, Any]
    """Key of a column (`tree_report.TREE_COLUMNS`) -> value; unknown if missing or None."""
    group: str = ""
    """Rows of one group, such as a pipeline stage, form one tree."""
    marks: tuple[str, ...] = ()
    """Words shown after the name: shared, not called."""


@dataclass(slots=True, kw_only=True)
class TreeNode:
    """A module in the tree."""

    row: TreeRow
    name: str
    """Name in its parent."""
    children: list[TreeNode] = field(default_factory=list)
    repeats: int = 1
    """Number of equal neighbours that this node represents."""

    def walk(self, depth: int = 0, times: int = 1) -> Iterator[tuple[TreeNode, int, int]]:
        """Yields this node and all descendants, parents first, each with its depth and the number of modules it
        represents."""
        times *= self.repeats
        yield self, depth, times
        for child in self.children:
            yield from child.walk(depth + 1, times)

    def equals(self, other: TreeNode) -> bool:
        """Returns whether both nodes and their descendants are equal in classes, marks, numbers and names of
        descendants."""
        ours, theirs = self.row, other.row
        return ((ours.class_name, ours.marks, ours.values) == (theirs.class_name, theirs.marks, theirs.values)
                and len(self.children) == len(other.children)
                and all(one.name == two.name and one.equals(two)
                        for one, two in zip(self.children, other.children, strict=True)))


def build_trees(rows: Iterable[TreeRow]) -> list[TreeNode]:
    """Returns the roots of all trees; children keep the order of rows, but numbered ones are sorted."""
    nodes = {(row.group, row.path): TreeNode(row=row, name="") for row in rows}
    roots = []
    for (group, path), node in nodes.items():
        above = next((outer for outer in paths_above(path) if (group, outer) in nodes), None)
        if above is None:
            node.name = _root_name(group, path)
            roots.append(node)
        else:
            node.name = path[len(above):].lstrip(".")
            nodes[group, above].children.append(node)
    for node in nodes.values():
        if all(child.name.isdecimal() for child in node.children):  # a shared module is found late and would come last
            node.children.sort(key=lambda child: int(child.name))
    return roots


def _root_name(group: str, path: str) -> str:
    prefix = path if path.endswith(":") else ""
    return " ".join(filter(None, (group, prefix, path.removesuffix(prefix) or "(root)")))


def paths_above(path: str) -> Iterator[str]:
    """Yields the paths of all modules above a path, nearest first, root last."""
    prefix = MODEL_PREFIX.match(path)
    root = prefix.group() if prefix else ""
    rest = path[len(root):]
    while rest:
        rest = rest.rpartition(".")[0]
        yield root + rest


def collapse(nodes: list[TreeNode]) -> list[TreeNode]:
    """Folds numbered neighbours into one node if all numbers of their subtrees are equal."""
    runs: list[list[TreeNode]] = [[node] for node in nodes[:1]]
    for before, node in pairwise(nodes):
        numbered = before.name.isdecimal() and node.name.isdecimal()
        if numbered and int(node.name) == int(before.name) + 1 and before.equals(node):
            runs[-1].append(node)
        else:
            runs.append([node])
    return [_one(run) for run in runs]


def _one(run: list[TreeNode]) -> TreeNode:
    first = run[0]
    name = first.name if len(run) == 1 else f"{first.name}-{run[-1].name}"
    return TreeNode(row=first.row, name=name, children=collapse(first.children), repeats=len(run))


SORTS: dict[str, tuple[str, ...]] = {
    "path": (),
    "params": ("params",),
    "macs": ("macs",),
    "flops": ("fwd_flops", "bwd_flops", "recompute_flops"),
    "fwd": ("fwd_time_ns",),
    "bwd": ("bwd_time_ns",),
    "time": ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns"),
}
"""Sort order -> columns whose sum it uses; path is the order of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """The user's options for a tree."""

    depth: int | None = 3
    """Levels below the root; None for all."""
    top: int | None = None
    """Number of modules to show, the largest by `sort`, plus their parents; None for all."""
    sort: str = "path"
    """One of `SORTS`; siblings are sorted largest first."""
    columns: Sequence[str] | None = None
    """Keys of `tree_report.TREE_COLUMNS`; None for all that are informative."""
    collapse: bool = True
    """Whether to fold numbered neighbours with equal numbers into one line."""

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            UsageError: A number is out of range, or the order is unknown.
        """
        if self.sort not in SORTS:
            raise UsageError(f"unknown sort {self.sort!r}; choose from {', '.join(SORTS)}")
        for name, number, least in (("depth", self.depth, 0), ("top", self.top, 1)):
            if number is not None and number < least:
                raise UsageError(f"{name} must be at least {least}, not {number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One line of the tree."""

    guide: str
    """Lines of the tree drawn before the name."""
    name: str
    row: TreeRow
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModules:
    """Lines of a tree, and how much of it they show."""

    lines: tuple[TreeLine, ...]
    num_modules: int
    """Number of all modules of the tree."""
    num_shown: int
    """Number of modules that the lines represent."""
    deepest: int
    """Depth of the deepest module."""


def select_modules(rows: Sequence[TreeRow], view: TreeView) -> ShownModules:
    """Builds the trees and selects lines.

    Raises:
        UsageError: No module has a value to sort by.
    """
    if rows and not _known(rows, view.sort):
        raise UsageError(f"sort={view.sort!r} is not possible: no module has a known {view.sort}",
                         hint=f"known: {', '.join(name for name in SORTS if _known(rows, name))}")
    roots = build_trees(rows)
    deepest = max((depth for root in roots for _, depth, _ in root.walk()), default=0)
    if view.collapse:
        roots = [node for root in roots for node in collapse([root])]
    for node, _, _ in (walked for root in roots for walked in root.walk()):
        node.children.sort(key=lambda child: -_weight(child, view.sort))  # stable: 'path' weighs nothing
    chosen = _chosen(roots, view)
    lines = tuple(line for root in roots for line in _lines(root, chosen, "", ""))
    shown = sum(times for root in roots for node, _, times in root.walk() if id(node) in chosen)
    return ShownModules(lines=lines, num_modules=len(rows), num_shown=shown, deepest=deepest)


def _known(rows: Sequence[TreeRow], sort: str) -> bool:
    keys = SORTS[sort]
    return not keys or any(row.values.get(key) is not None for row in rows for key in keys)


def _weight(node: TreeNode, sort: str) -> float:
    return sum(node.row.values.get(key) or 0 for key in SORTS[sort])


def _chosen(roots: list[TreeNode], view: TreeView) -> set[int]:
    """Returns the ids of the nodes to show."""
    visible = [node for root in roots for node, depth, _ in root.walk() if view.depth is None or depth <= view.depth]
    if view.top is None:
        return {id(node) for node in visible}
    # sorting is stable: of equal nodes, the parent comes first
    largest = {id(node) for node in sorted(visible, key=lambda node: -_weight(node, view.sort))[:view.top]}
    return {id(node) for node in visible if any(id(below) in largest for below, _, _ in node.walk())}


def _lines(node: TreeNode, chosen: set[int], guide: str, rest: str) -> Iterator[TreeLine]:
    """Yields the lines of a node; `guide` precedes the node itself, `rest` its descendants."""
    if id(node) not in chosen:
        return
    yield TreeLine(guide=guide, name=node.name, row=node.row, repeats=node.repeats)
    children = [child for child in node.children if id(child) in chosen]
    for child in children:
        last = child is children[-1]
        yield from _lines(child, chosen, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
