"""Imports beside those of a script: what happens once it has imported a module, and our own, apart from its folder."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Import hook that calls a function once, after a module was imported."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Finds nothing of its own; where the name is that of the module, its loader calls the function at the end."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._call()

            loader.exec_module = exec_module
        return spec


def after_import(name: str, call: Callable[[], None]) -> None:
    """Calls the function now where the module is imported already, else when it is."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, AfterImport(name, call))


@contextmanager
def own_imports() -> Iterator[None]:
    """What is imported in here comes from where distprof and Python are installed, not from the folder of the script.

    Python looks first in that folder, which may have a `statistics.py`. The script still gets its own: what was
    imported here under such a name is forgotten.
    """
    first = [] if sys.flags.safe_path else sys.path[:1]
    before = {*sys.modules}
    del sys.path[:len(first)]
    try:
        yield
    finally:
        sys.path[:0] = first
        taken = {name for name in {name.partition(".")[0] for name in {*sys.modules} - before} - before
                 if _has(first, name)}
        for name in [*sys.modules]:
            if name.partition(".")[0] in taken:
                del sys.modules[name]


def _has(folders: list[str], name: str) -> bool:
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return spec is not None and spec.has_location  # a folder without __init__.py has none, and comes last
