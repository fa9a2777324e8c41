"""Module trees: built from rows, equal neighbours folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

MODEL_PREFIX = re.compile(r"model\d+:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One module and its values, from a count or a merged run."""

    path: str
    """Path from the root; the root is '', a second root model is 'model1:'."""
    class_name: str
    values: Mapping[str, Any]
    """Key of a column (`tree_columns.TREE_COLUMNS`) -> value; missing or None is unknown."""
    group: str = ""
    """Rows of one group form one tree, such as a pipeline stage."""
    marks: tuple[str, ...] = ()
    """Words after the name: shared, not called."""


@dataclass(slots=True, kw_only=True)
class TreeNode:
    """A module in the tree."""

    row: TreeRow
    name: str
    """Name inside its parent."""
    children: list[TreeNode] = field(default_factory=list)
    repeats: int = 1
    """Number of equal neighbours that this node represents."""

    def walk(self, depth: int = 0, times: int = 1) -> Iterator[tuple[TreeNode, int, int]]:
        """This node and all below, parents first: each with its depth and the number of modules it represents."""
        times *= self.repeats
        yield self, depth, times
        for child in self.children:
            yield from child.walk(depth + 1, times)

    def equals(self, other: TreeNode) -> bool:
        """True if all numbers of both nodes and their descendants are equal."""
        ours, theirs = self.row, other.row
        return ((ours.class_name, ours.marks, ours.values) == (theirs.class_name, theirs.marks, theirs.values)
                and len(self.children) == len(other.children)
                and all(one.name == two.name and one.equals(two)
                        for one, two in zip(self.children, other.children, strict=True)))


def build_trees(rows: Iterable[TreeRow]) -> list[TreeNode]:
    """The roots of all trees; children keep the order of rows, numbered ones are sorted."""
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
        if all(child.name.isdecimal() for child in node.children):  # a shared module is found late and would be last
            node.children.sort(key=lambda child: int(child.name))
    return roots


def _root_name(group: str, path: str) -> str:
    prefix = path if path.endswith(":") else ""
    return " ".join(filter(None, (group, prefix, path.removesuffix(prefix) or "(root)")))


def paths_above(path: str) -> Iterator[str]:
    """Paths of all modules above a path, the nearest first, the root last."""
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
