"""Call paths: modules that are entered come in, the chain of modules whose work an operator is goes out."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.modules import Site


class CallPath:
    """The chain of modules that were running, each chain kept once."""

    __slots__ = ("_children", "outer", "site")

    def __init__(self, outer: CallPath | None, site: Site | None) -> None:
        self.outer = outer
        self.site = site
        """The innermost module; None outside of every module."""
        self._children: dict[int, CallPath] = {}

    def child(self, site: Site) -> CallPath:
        """This chain and one module more."""
        return self._children.setdefault(id(site), CallPath(self, site))

    def called(self) -> set[Site]:
        """The modules of the chain, each once."""
        return {path.site for path in self._chain() if path.site is not None}

    def sites(self) -> set[Site]:
        """The same, and containers that hold one of them without being called: a ModuleList."""
        found = self.called()
        for path in self._chain():
            if path.site is not None and path.outer is not None:
                found.update(_between(path.outer.site, path.site))
        return found

    def _chain(self) -> Iterator[CallPath]:
        path: CallPath | None = self
        while path is not None:
            yield path
            path = path.outer


def _between(outer: Site | None, site: Site) -> list[Site]:
    """Sites above `site` and below `outer`, if it stands below that: a module may be called from elsewhere."""
    above, parent = [], site.parent
    while parent is not None and parent is not outer:
        above.append(parent)
        parent = parent.parent
    return above if parent is outer and outer is not None else []
