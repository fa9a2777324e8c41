"""Module paths: every module of a called root model gets a name.

Wrappers (DDP, FSDP1, torch.compile, checkpoint_wrapper) are transparent: they share the path of what they wrap.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

WRAPPED = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Class of a wrapper -> name of its child."""


def is_wrapper(module: nn.Module) -> bool:
    """Returns whether a module only runs another one; FSDP2 creates subclasses of wrappers with names of their own."""
    return any(base.__name__ in WRAPPED for base in type(module).__mro__)


@dataclass(slots=True, eq=False)
class Site:
    """A module at its place in a model."""

    model: Model
    name: str
    """Path from the root of the model, '' for the root."""
    class_name: str
    parent: Site | None
    module: weakref.ref[nn.Module]

    @property
    def path(self) -> str:
        """Module path as in tables: `layers.0`, `model1:layers.0`."""
        return f"{self.model.prefix}{self.name}"

    @property
    def depth(self) -> int:
        """Number of modules above this one."""
        return 0 if self.parent is None else self.parent.depth + 1


@dataclass(slots=True, eq=False)
class Model:
    """One root module and the sites below it, in the order of `named_modules`."""

    prefix: str = ""
    sites: dict[str, Site] = field(default_factory=dict)
    outermost: weakref.ref[nn.Module] | None = None
    """The module that was called: the wrapper of the root, if it has one."""
    trained: bool = False
    """False while all its calls were evaluation: a teacher, averaged weights."""
    left_out: bool = False
    """True once it is known that only threads whose steps are not recorded call it."""
    _had_parameters: bool = False

    @property
    def root(self) -> Site:
        return self.sites[""]

    def called(self) -> nn.Module | None:
        """Returns the module that was called, or else the root; None if neither is alive."""
        outermost = self.outermost() if self.outermost is not None else None
        return outermost if outermost is not None else self.root.module()

    def has_parameters(self) -> bool:
        """Returns whether it has parameters, unlike a loss function; remains True if the script drops the model."""
        if not self._had_parameters:
            module = self.root.module()
            self._had_parameters = module is not None and next(module.parameters(), None) is not None
        return self._had_parameters


class ModuleMap:
    """All models that were called, and the sites of their modules."""

    def __init__(self) -> None:
        self.models: list[Model] = []
        self._sites: dict[int, Site] = {}
        self._called: dict[tuple[int, int], Site] = {}
        """(id of the outer site, id of the module) -> site of the module when it is called there."""

    def find(self, module: nn.Module) -> Site | None:
        """Returns the site of a module; None if it is unknown."""
        site = self._sites.get(id(module))
        # a new module may have the id of a dead one
        return site if site is not None and (site.module() is module or is_wrapper(module)) else None

    def find_called(self, module: nn.Module, outer: Site) -> Site | None:
        """Returns the site of a module called inside another; a shared module has one for each of its parents."""
        key = id(outer), id(module)
        site = self._called.get(key)
        if site is None or site.module() is not module:
            found = self.find(module)
            if found is None or is_wrapper(module):
                return found
            site = self._called[key] = found if found is outer or _above(outer, found) else self._alias(
                module, outer) or found
        return site

    def _alias(self, module: nn.Module, outer: Site) -> Site | None:
        """Returns a site below `outer` for a module whose own site is elsewhere; None if `outer` does not contain
        it."""
        name = _name_in(outer, module)
        if name is None:
            return None
        model, path = outer.model, f"{outer.name}.{name}".lstrip(".")
        parent = model.sites.get(path.rpartition(".")[0], outer)
        return model.sites.get(path) or model.sites.setdefault(
            path, Site(model, path, type(module).__name__, parent, weakref.ref(module)))

    def add_root(self, module: nn.Module) -> Site:
        """Adds a module that was called from outside all modules, as a root."""
        model = Model(outermost=weakref.ref(module))
        self._called.clear()  # sites may move
        inside = {id(sub) for _, sub in module.named_modules()}
        parts = [old for old in self.models if id(old.root.module()) in inside]  # before their roots move
        model.trained = any(old.trained for old in parts)
        self.models = [old for old in self.models if old not in parts]
        for raw_name, path, sub in _unwrapped(module):
            site = model.sites.get(path)
            if site is None:
                site = self._moved(sub, model, path) or _site(model, path, sub)
            elif raw_name.endswith(tuple(WRAPPED.values())):
                site.class_name, site.module = type(sub).__name__, weakref.ref(sub)
            self._sites[id(sub)] = site
        self.models.append(model)
        self._number()
        return model.root

    def _moved(self, module: nn.Module, model: Model, path: str) -> Site | None:
        """Moves the site of a module that was called on its own before to its place in the model that contains it."""
        site = self.find(module)
        if site is not None:
            site.model.sites.pop(site.name, None)
            site.model, site.name = model, path
            site.parent = model.sites.get(path.rpartition(".")[0]) if path else None
            model.sites[path] = site
        return site

    def adopt(self, module: nn.Module, parent: Site) -> Site:
        """Adds a module that was called inside another: it was attached there later, or is not a child of any
        module."""
        name = _name_in(parent, module) or type(module).__name__
        model, name = parent.model, f"{parent.name}.{name}".lstrip(".")
        site = model.sites.get(name) or _site(model, name, module)
        self._sites[id(module)] = site
        return site

    def drop(self, model: Model) -> None:
        """Forgets a model that is not recorded."""
        model.left_out = True
        if model in self.models:
            self.models.remove(model)
            gone = set(map(id, model.sites.values()))
            self._sites = {key: site for key, site in self._sites.items() if id(site) not in gone}
            self._called.clear()
            self._number()

    def sites(self) -> Iterator[Site]:
        """Yields the sites of all models."""
        for model in self.models:
            yield from model.sites.values()

    def roots(self) -> list[nn.Module]:
        """Returns the root modules that are alive, as they were called, including wrappers."""
        return [module for model in self.models if (module := model.called()) is not None]

    def start_over(self) -> None:
        """Forgets which models were called for training."""
        for model in self.models:
            model.trained = False

    def of_the_model(self) -> list[Model]:
        """Returns the models that totals include: without those that were only called in evaluation, if there are
        others."""
        return [model for model in self.models if model.trained] or self.models

    def _number(self) -> None:
        # the first model with parameters has no prefix, whatever was called before it
        ordered = sorted(self.models, key=lambda model: not model.has_parameters())
        for index, model in enumerate(ordered):
            model.prefix = f"model{index}:" if index else ""
        self.models = ordered


def _name_in(outer: Site, module: nn.Module) -> str | None:
    """Returns the path of a module below another one; None if it is not there."""
    holder = outer.module()
    return None if holder is None else next(
        (path for _, path, sub in _unwrapped(holder) if sub is module and path), None)


def _above(outer: Site, site: Site) -> bool:
    return site.model is outer.model and (not outer.name or site.name.startswith(f"{outer.name}."))


def _site(model: Model, path: str, module: nn.Module) -> Site:
    parent = model.sites.get(path.rpartition(".")[0]) if path else None
    site = model.sites[path] = Site(model, path, type(module).__name__, parent, weakref.ref(module))
    return site


def _unwrapped(root: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yields raw name, path without wrappers, and module, parents first."""
    paths: dict[str, str] = {}
    wrappers: set[str] = set()
    for raw_name, module in root.named_modules():
        above, _, last = raw_name.rpartition(".")
        if not raw_name:
            path = ""
        elif above in wrappers:
            path = paths[above]
        else:
            path = f"{paths[above]}.{last}".lstrip(".")
        paths[raw_name] = path
        if is_wrapper(module):
            wrappers.add(raw_name)
        yield raw_name, path, module
