"""Names of the modules of a model, and of those that an operator counts for."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from distprof.model.call_paths import CallPath
from distprof.model.modules import is_wrapper


class ModuleNames:
    """All names of all modules of a model; results use the first name of a module that has several."""

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        """By every name; '' is the model."""
        self._first: dict[nn.Module, str] = {}
        for name, module in self.modules.items():
            self._first.setdefault(module, name)

    def __iter__(self) -> Iterator[str]:
        """The first names, modules before what they hold."""
        return iter(self._first.values())

    def canonical(self, name: str) -> str:
        """The first name of the module that has this name.

        Raises:
            KeyError: The model has no such module.
        """
        if name not in self.modules:
            raise KeyError(f"expected the name of a module of {type(self.modules['']).__name__}, found {name!r}")
        return self._first[self.modules[name]]

    def callers(self, path: CallPath) -> set[str]:
        """Modules that were running, with the wrappers around them."""
        found = {""}
        for module in _running(path):
            name = self._first.get(module)
            while name:
                found.add(name)
                above = name.rpartition(".")[0]
                name = above if is_wrapper(self.modules[above]) else None
        return found

    def owners(self, path: CallPath) -> set[str]:
        """The innermost running module of the model and those above it by name."""
        innermost = next((self._first[module] for module in _running(path) if module in self._first), "")
        return set(name_and_holders(innermost))


def _running(path: CallPath) -> Iterator[nn.Module]:
    """Modules that were running, innermost first."""
    inner: CallPath | None = path
    while inner is not None and inner.site is not None:
        module = inner.site.module()
        if module is not None:
            yield module
        inner = inner.outer


def name_and_holders(name: str) -> list[str]:
    """The names of all that hold a module or parameter, the model ('') first, and its own: a.b is '', a, a.b."""
    parts = name.split(".") if name else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]
