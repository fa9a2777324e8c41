"""Parameters that FSDP (`FullyShardedDataParallel`) has put into flat ones, as they were before.

Their sizes come from what the flat parameter knows about itself: nothing is gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from distprof.model.held_params import HeldParam
from distprof.model.tensors import dtype_name


class Original(NamedTuple):
    """One parameter inside a flat one."""

    name: str
    """In its module."""
    key: tuple[int, int]
    """Equal for a parameter that several modules share."""
    shape: tuple[int, ...]
    param: HeldParam


class FlatParams:
    """The flat parameters below some root modules."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._of_module: dict[int, list[Original]] = defaultdict(list)
        self._replaced: set[int] = set()
        self._flat = list({id(flat): flat for root in roots for module in root.modules()
                           if (flat := _flat_param(module)) is not None}.values())  # alive, as their ids are kept
        for flat in self._flat:
            self._take_in(flat)

    def of(self, module: nn.Module) -> list[Original]:
        """Parameters that this module itself had."""
        return self._of_module.get(id(module), [])

    def replaces(self, parameter: torch.Tensor) -> bool:
        """True for a flat parameter, and for a view into one that stands where the original was."""
        return id(parameter) in self._replaced

    def _take_in(self, flat: Any) -> None:
        views = (*(flat._params or ()), *(flat._shared_params or ()))
        self._replaced |= {id(flat), *map(id, views)}
        originals = dict(_originals(flat))
        for (holder, _), original in originals.items():
            self._of_module[holder].append(original)
        for shared in flat._shared_param_infos:
            first = originals[id(shared.prim_module), shared.prim_param_name]
            self._of_module[id(shared.module)].append(first._replace(name=shared.param_name))


def _flat_param(module: nn.Module) -> Any:
    return getattr(getattr(module, "_handle", None), "flat_param", None)


def _originals(flat: Any) -> Iterator[tuple[tuple[int, str], Original]]:
    """By id of the module and name in it."""
    params = flat._params or [flat] * flat._num_params
    rows = zip(flat._param_infos, flat._shapes, flat._shard_param_infos, params, strict=True)
    for index, (info, shape, shard, param) in enumerate(rows):
        stored = int(shard.numel_in_shard or 0)
        held = HeldParam(size=prod(shape), stored=stored, num_bytes=stored * flat.element_size(), whole=prod(shape),
                         whole_is_known=flat._param_extensions[index] is None, dtype=dtype_name(flat.dtype),
                         trainable=bool(param.requires_grad))
        yield (id(info.module), info.param_name), Original(info.param_name, (id(flat), index), tuple(shape), held)
