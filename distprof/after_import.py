"""Calls functions after the script has imported a module, and imports modules for distprof, not from the script's
folder."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Import hook that calls a function once, after a module was imported.

    A call of `find_spec` does not mean that the module is imported: scripts use `importlib.util.find_spec` to check
    whether it exists.
    """

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call
        self._asking = self._called = False

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Returns the usual spec of the module, with a loader that calls the function at the end; None for others."""
        if name != self._name or self._asking or self._called:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.exec_module = execute  # a module may be loaded again
            execute(module)
            if not self._called:
                self._called = True
                self.remove()
                self._call()

        loader.exec_module = exec_module

    def remove(self) -> None:
        """Removes the hook from sys.meta_path, unless the script has done so."""
        with suppress(ValueError):
            sys.meta_path.remove(self)


def after_import(name: str, call: Callable[[], None]) -> None:
    """Calls the function now if the module is already imported, else after it is imported."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, AfterImport(name, call))


NEEDED = {*sys.stdlib_module_names, "isal", "msgspec", "pyarrow"}
"""Top-level modules that distprof may import in a rank, besides itself and what torch imports."""
_OURS: dict[str, ModuleType] = {}
"""Modules that distprof imported and whose names also exist in the folder of the script."""


@contextmanager
def own_imports() -> Iterator[None]:
    """Makes imports inside the block ignore the folder of the script.

    Python looks first in that folder, which may have a `statistics.py`. The script still gets its own module: what was
    imported in the block under such a name is set aside until the next time.
    """
    first = [] if sys.flags.safe_path else sys.path[:1]
    del sys.path[:len(first)]
    places = tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in first)  # noqa: PTH100 (often called)
    theirs = _taken_out({name.partition(".")[0] for name in _OURS} | (_from(places) if places else set()))
    sys.modules.update(_OURS)
    before = sys.modules.copy()  # faster than creating a set of its thousands of names
    try:
        yield
    finally:
        sys.path[:0] = first
        new = {first_part for name in [*sys.modules]
               if name not in before and (first_part := name.partition(".")[0]) not in before}
        names = {name.partition(".")[0] for name in (*_OURS, *theirs)} | {name for name in new if _has(first, name)}
        _OURS.update(_taken_out(names))
        sys.modules.update(theirs)


def _taken_out(names: set[str]) -> dict[str, ModuleType]:
    """Removes the modules of these packages from `sys.modules` and returns them."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in names} if names else {}


def _from(places: tuple[str, ...]) -> set[str]:
    """Returns the names of modules that were imported from these folders although `sys.path` has others."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) or "" for name in NEEDED}
    return {name for name, file in files.items()
            if file.startswith(places) and _file_of(sys.path, name) not in (None, file)}


def _has(folders: list[str], name: str) -> bool:
    return _file_of(folders, name) is not None


def _file_of(folders: list[str], name: str) -> str | None:
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return spec.origin if spec is not None and spec.has_location else None  # ignores folders without __init__.py
