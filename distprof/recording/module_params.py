"""Counts the parameters of a rank, in total, by module and one by one, while the modules are alive.

A checksum tells whether a parameter has the same values on two ranks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import torch

from distprof.contract.rank_json import ParamCount
from distprof.contract.tables import TableRow
from distprof.model.modules import Model, ModuleMap, Site
from distprof.model.params import OwnParam, ParamCounter, active_ratios
from distprof.process.topology import Topology

MOST_ELEMENTS = 4096
"""Maximum number of elements that a checksum covers, evenly spaced, so that huge parameters take no time."""


def checksum(tensor: torch.Tensor) -> int | None:
    """Returns a 63-bit hash of the values; None if they identify nothing: fewer than two, or all equal."""
    try:
        values = _sample(tensor.detach())
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # a subclass that stores its values in its own way
    if values is None or values.shape[0] < 2 or bool((values == values[0]).all()):
        return None
    return int.from_bytes(hashlib.blake2b(values.numpy().tobytes(), digest_size=8).digest(), "big") >> 1


def _sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns some elements as bytes, one row per element."""
    if tensor.device.type == "meta" or not tensor.numel() or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    flat = tensor.reshape(-1)
    step = -(-flat.numel() // MOST_ELEMENTS)
    return flat[::step].contiguous().view(torch.uint8).reshape(-1, flat.element_size()).cpu()


MOST_LOOKS = 16
"""Maximum number of counts before a pass ends, so that a script that keeps creating models is not slowed down in each
step."""


class ModuleParams:
    """What is known about the parameters of the models that were called."""

    def __init__(self) -> None:
        self.total: ParamCount | None = None
        """Sum over all root modules; None before the first count."""
        self.rows: list[TableRow] = []
        """Rows of parameters.parquet."""
        self._by_site: dict[Site, TableRow] = {}
        self._num_counted = 0
        """Number of modules in the models that the total covers."""
        self._looked_at = set[Model]()
        self._looks = 0

    def lacks(self, modules: ModuleMap) -> bool:
        """Returns whether there are new models with parameters, which may be gone before the next count."""
        new = [model for model in modules.models if model not in self._looked_at and model.has_parameters()]
        return bool(new) and self._looks < MOST_LOOKS

    def measure(self, modules: ModuleMap, topology: Callable[[], Topology], *, checksums: bool) -> None:
        """Counts if there are new modules since the last time.

        Called between two steps, when FSDP has its shards in place, and by all ranks after the same step, so that
        checksums of ranks can be compared.

        Args:
            modules: The models that were called.
            topology: Returns the position of this rank.
            checksums: False if the device must not be waited for, because another thread hangs.
        """
        self._looked_at.update(modules.models)
        self._looks += 1
        sites, models = list(modules.sites()), modules.of_the_model()
        counted = [site for model in models for site in model.sites.values()]
        if not sites or (len(sites), len(counted)) == (len(self._by_site), self._num_counted):
            return
        counter = ParamCounter(modules.roots(), topology())
        self._by_site |= {site: _columns(counter.below([module]), counter.own(module)) for site in sites
                          if (module := site.module()) is not None}
        alive = [root for model in models if (root := model.called()) is not None]
        if len(counted) != self._num_counted and (alive or self.total is None):  # not if one rank evaluates a model
            self._num_counted = len(counted)
            self.total = counter.below(alive)
            self.rows = _param_rows(modules, counted, counter, checksums=checksums)

    def columns(self, sites: Sequence[Site]) -> list[TableRow]:
        """Returns the first columns of modules.parquet, one row per site."""
        return [{"module_path": site.path, "class_name": site.class_name, "depth": site.depth,
                 **self._by_site.get(site, UNKNOWN)} for site in sites]


def _columns(numbers: ParamCount, own_params: int) -> TableRow:
    same = ("params", "stored_params", "trainable_params", "param_bytes", "buffers", "buffer_bytes")
    return {**{name: getattr(numbers, name) for name in same}, "own_params": own_params,
            "dtype": max(numbers.dtypes, key=numbers.dtypes.__getitem__, default=None)}


UNKNOWN: TableRow = dict.fromkeys(_columns(ParamCount(), 0))
"""Columns of a module that was gone before it was counted."""


def _param_rows(modules: ModuleMap, sites: Sequence[Site], counter: ParamCounter, *,
                checksums: bool) -> list[TableRow]:
    active = {key: ratio for root in modules.roots() for key, ratio in active_ratios(root).items()}
    once: dict[object, TableRow] = {}
    for site in sites:
        module = site.module()
        for own in counter.own_params(module) if module is not None else ():
            if own.key not in once:
                values = own.tensor if checksums else None
                once[own.key] = _row(site, own, active.get(id(module)), None if values is None else checksum(values))
        for index, packed in enumerate(counter.packed(module) if module is not None else ()):
            once[id(module), index] = {
                "module_path": site.path, "name": f"packed {index}", "shape": "null", "dtype": packed.dtype,
                "params": packed.size, "stored_params": packed.size, "whole_params": packed.size, "trainable": False}
    return list(once.values())


def _row(site: Site, own: OwnParam, active_ratio: float | None, values: int | None) -> TableRow:
    param = own.param
    return {"module_path": site.path, "name": own.name, "shape": json.dumps(own.shape), "dtype": param.dtype,
            "params": param.size, "stored_params": param.stored,
            "whole_params": param.whole if param.whole_is_known else None, "trainable": param.trainable,
            "checksum": values, "active_ratio": active_ratio}
