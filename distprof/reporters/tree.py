"""Builds module trees from rows and folds equal neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from distprof.reporters.tree_row import TreeRow

MODEL_PREFIX = re.compile(r"model\d+:")


@dataclass(slots=True, kw_only=True)
class TreeNode:
    """A module in the tree."""

    row: TreeRow
    name: str
    """Name inside its parent."""
    children: list[TreeNode] = field(default_factory=list)
    repeats: int = 1
    """Number of equal neighbours that this node represents."""

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

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
    for root in roots:
        _order(root)
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


def _order(node: TreeNode) -> None:
    """Sorts numbered children: a shared module is found late and would be last."""
    if all(child.name.isdecimal() for child in node.children):
        node.children.sort(key=lambda child: int(child.name))
    for child in node.children:
        _order(child)


def collapse(nodes: list[TreeNode]) -> list[TreeNode]:
    """Folds numbered neighbours into one node if all numbers of their subtrees are equal."""
    runs: list[list[TreeNode]] = [[node] for node in nodes[:1]]
    for before, node in pairwise(nodes):
        if _next_to(before, node) and before.equals(node):
            runs[-1].append(node)
        else:
            runs.append([node])
    return [_one(run) for run in runs]


def _next_to(before: TreeNode, node: TreeNode) -> bool:
    return before.name.isdecimal() and node.name.isdecimal() and int(node.name) == int(before.name) + 1


def _one(run: list[TreeNode]) -> TreeNode:
    first = run[0]
    name = first.name if len(run) == 1 else f"{first.name}-{run[-1].name}"
    return TreeNode(row=first.row, name=name, children=collapse(first.children), repeats=len(run))
