"""Call paths: the chain of running modules that the work of an operator belongs to."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.model.modules import Site


class CallPath:
    """The chain of modules that were running, each chain kept once."""

    __slots__ = ("_children", "outer", "site")

    def __init__(self, outer: CallPath | None, site: Site | None) -> None:
        self.outer = outer
        self.site = site
        """The innermost module; None outside of every module."""
        self._children: dict[int, CallPath] = {}

    def child(self, site: Site) -> CallPath:
        """This chain with one more module."""
        return self._children.setdefault(id(site), CallPath(self, site))

    def sites(self) -> set[Site]:
        """The modules of the chain, each once, and containers that hold one without being called: a ModuleList."""
        found: set[Site] = set()
        for path in self._chain():
            if path.site is not None:
                found.add(path.site)
                found.update(holders(path.outer.site if path.outer is not None else None, path.site))
        return found

    def _chain(self) -> Iterator[CallPath]:
        path: CallPath | None = self
        while path is not None:
            yield path
            path = path.outer


def holders(outer: Site | None, site: Site) -> list[Site]:
    """Containers that hold a module without being called: the sites between it and the module that calls it.

    Empty where the caller does not hold it: a module may be called from elsewhere.
    """
    above, parent = [], site.parent
    while parent is not None and parent is not outer:
        above.append(parent)
        parent = parent.parent
    return above if parent is outer and outer is not None else []
