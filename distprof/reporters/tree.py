"""Modules as a tree: rows come in, nodes in tree order go out; equal neighbours become one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from distprof.reporters.row import Row

PREFIX = re.compile(r"model\d+:")


@dataclass(slots=True, kw_only=True)
class Node:
    """A module in the tree."""

    row: Row
    name: str
    """What it is called inside its parent."""
    children: list[Node] = field(default_factory=list)
    repeats: int = 1
    """Number of equal neighbours this one stands for."""

    def walk(self) -> Iterator[Node]:
        """This node and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def equals(self, other: Node) -> bool:
        """True where all numbers of both, and of everything below, are equal."""
        ours, theirs = self.row, other.row
        return ((ours.class_name, ours.marks, ours.values) == (theirs.class_name, theirs.marks, theirs.values)
                and len(self.children) == len(other.children)
                and all(one.name == two.name and one.equals(two)
                        for one, two in zip(self.children, other.children, strict=True)))


def build(rows: Iterable[Row]) -> list[Node]:
    """The roots of all trees; children stand as their rows do, numbered ones by number."""
    nodes = {(row.group, row.path): Node(row=row, name="") for row in rows}
    roots = []
    for (group, path), node in nodes.items():
        above = next((outer for outer in above_of(path) if (group, outer) in nodes), None)
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


def above_of(path: str) -> Iterator[str]:
    """Paths that modules above one have, the nearest first; the last is that of the root."""
    prefix = PREFIX.match(path)
    root = prefix.group() if prefix else ""
    rest = path[len(root):]
    while rest:
        rest = rest.rpartition(".")[0]
        yield root + rest


def _order(node: Node) -> None:
    """A shared module is found late and would stand behind its siblings."""
    if all(child.name.isdecimal() for child in node.children):
        node.children.sort(key=lambda child: int(child.name))
    for child in node.children:
        _order(child)


def collapse(nodes: list[Node]) -> list[Node]:
    """Makes one node of numbered neighbours that are equal in every number, all the way down."""
    runs: list[list[Node]] = [[node] for node in nodes[:1]]
    for before, node in pairwise(nodes):
        if _next_to(before, node) and before.equals(node):
            runs[-1].append(node)
        else:
            runs.append([node])
    return [_one(run) for run in runs]


def _next_to(before: Node, node: Node) -> bool:
    return before.name.isdecimal() and node.name.isdecimal() and int(node.name) == int(before.name) + 1


def _one(run: list[Node]) -> Node:
    first = run[0]
    name = first.name if len(run) == 1 else f"{first.name}-{run[-1].name}"
    return Node(row=first.row, name=name, children=collapse(first.children), repeats=len(run))
