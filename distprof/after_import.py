"""Calls a function once a module has been imported by whoever needs it, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
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
