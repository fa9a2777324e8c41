"""Parameters of the modules that were seen, counted while they are alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distprof.contract.columns import TableRow
from distprof.contract.rank_json import ParamCount
from distprof.model.modules import ModuleMap, Site
from distprof.model.params import count_params
from distprof.process.topology import Topology


class ModuleParams:
    """Numbers of parameters of this rank, in all and by module."""

    def __init__(self) -> None:
        self.total: ParamCount | None = None
        """Over all root modules; None before the first count."""
        self._inclusive: dict[Site, ParamCount] = {}
        self._own: dict[Site, int] = {}
        self._num_sites = 0

    def measure(self, modules: ModuleMap, topology: Callable[[], Topology]) -> None:
        """Counts if modules are new since the last time.

        Called between two steps, when FSDP has its shards in place.
        """
        sites = list(modules.sites())
        if not sites or len(sites) == self._num_sites:
            return
        where, roots = topology(), modules.roots()
        self.total = count_params((p for root in roots for p in root.parameters()), where,
                                  (b for root in roots for b in root.buffers()))
        self._inclusive, self._own = {}, {}
        for site in sites:
            module = site.module()
            if module is not None:
                self._inclusive[site] = count_params(module.parameters(), where, module.buffers())
                self._own[site] = count_params(module.parameters(recurse=False), where).params
        self._num_sites = len(self._inclusive)

    def columns(self, sites: Sequence[Site]) -> list[TableRow]:
        """The first columns of modules.parquet, one row per site."""
        return [self._columns(site, self._inclusive.get(site, ParamCount())) for site in sites]

    def _columns(self, site: Site, numbers: ParamCount) -> TableRow:
        return {
            "module_path": site.path,
            "class_name": site.class_name,
            "depth": site.depth,
            "params": numbers.params,
            "own_params": self._own.get(site, 0),
            "stored_params": numbers.stored_params,
            "trainable_params": numbers.trainable_params,
            "param_bytes": numbers.param_bytes,
            "buffers": numbers.buffers,
            "buffer_bytes": numbers.buffer_bytes,
            "dtype": max(numbers.dtypes, key=numbers.dtypes.__getitem__, default=None),
        }
