"""Makes DeepSpeed's report for the lowest rank of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.tables import MODULES
from distprof.errors import DataError
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table
from distprof.merge.totals.recorded_tables import read_tables
from distprof.merge.totals.step_time import step_time
from distprof.merge.totals.summary import samples_of_step
from distprof.merge.totals.totals import model_totals, per_rank
from distprof.merge.totals.workload import workload
from distprof.reporters.deepspeed_layout import (
    JobSizes,
    ModelParams,
    ModuleProfile,
    StepSeconds,
    module_line,
    report_text,
    summary_lines,
    top_modules_lines,
)
from distprof.terminal import visible
from distprof.units import duration, si

Row = dict[str, Any]
BASIS = ("Rank {rank}. FLOPs are 2 per MAC by distprof's formulas, excluding DeepSpeed's elementwise work; latencies "
         "of modules are means over the timed steps.")
PARTS = ("Latencies of fwd, bwd and step are their shares of the step time. As in DeepSpeed, samples/second leaves out "
         "the rest of a step, such as loading data")


class ModuleTree:
    """Modules of one rank by path, with the numbers that a report needs."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {row["module_path"]: row for row in rows}
        self.children: Mapping[str, list[str]] = defaultdict(list)
        for path in self.rows:
            if path:
                self.children[self._parent(path)].append(path)

    def profile(self, path: str) -> ModuleProfile:
        """Returns the profile of a module, including submodules."""
        return ModuleProfile(params=self.rows[path]["params"], macs=int(self._sum(path, "fwd_macs")),
                       flops=int(self._sum(path, "fwd_flops")), seconds=self._sum(path, "fwd_time_ns") / 1e9)

    def levels(self) -> list[dict[str, list[ModuleProfile]]]:
        """Returns class name -> its modules, for each depth."""
        levels: list[dict[str, list[ModuleProfile]]] = []
        waiting = [""]
        while waiting:
            level: dict[str, list[ModuleProfile]] = defaultdict(list)
            for path in waiting:
                level[visible(self.rows[path]["class_name"])].append(self.profile(path))
            levels.append(level)
            waiting = [child for path in waiting for child in self.children.get(path, ())]
        return levels

    def text(self, path: str = "") -> str:
        """Returns the tree as torch prints modules, with numbers in place of their arguments."""
        below = [f"({visible(child.removeprefix(f'{path}.'))}): {self.text(child)}"
                 for child in self.children.get(path, ())]
        own = module_line(self.profile(path), self.profile(""))
        name = visible(self.rows[path]["class_name"])
        if not below:
            return f"{name}({own})"
        return "\n".join((f"{name}(", *(f"  {line}" for part in (own, *below) for line in part.splitlines()), ")"))

    def _parent(self, path: str) -> str:
        above = path.rpartition(".")[0]
        return above if not above or above in self.rows else self._parent(above)

    def _sum(self, path: str, column: str) -> float:
        """Returns the value of a module, or the sum of its children if, like ModuleList, it is never called itself."""
        value: float = self.rows[path][column] or 0
        return value or sum(self._sum(child, column) for child in self.children.get(path, ()))


def deepspeed_text(path: Path, *, profile_step: int = 1, module_depth: int = -1, top_modules: int = 1,
                   detailed: bool = True, recompute_fwd_factor: float = 0.0) -> str:
    """Returns the report for the lowest recorded rank, with the settings of DeepSpeed's config file.

    Raises:
        DataError: The run cannot be read, or no step of the count pass was recorded.
    """
    run = open_run(path)
    tables = read_tables(run)
    rank = run.ranks[0].number
    modules = read_table(run.of_tables({rank}), MODULES).rows
    rows = modules.filter(~pl.col("module_path").str.contains(":")).to_dicts()
    if not rows or rows[0]["fwd_macs"] is None:
        raise DataError(f"no counted step of rank {rank} in {path}",
                        hint="the script must run more steps than profile_step")
    tree, ranks = ModuleTree(rows), per_rank(run, tables)
    params = model_totals(run, ranks, tables.parameters)["params"]
    own = ranks.filter(pl.col("rank") == rank).to_dicts()[0]
    sizes = JobSizes(world=run.world_size, data_parallel=run.dp_size, model_parallel=run.mp_size,
                     batch=round(own["samples"]) if own["samples"] is not None else None)
    top = summary_lines(tree.profile(""), ModelParams(plain=round(params or 0), expert=0), sizes=sizes,
                        times=_times(own), recompute_fwd_factor=recompute_fwd_factor)
    levels = tree.levels()
    shown = levels if module_depth == -1 else levels[:module_depth]
    text = report_text(profile_step, top, top_modules_lines(shown, top_modules), tree.text() if detailed else None)
    return "\n".join((text, BASIS.format(rank=rank), *_about_samples(run, tables.steps)))


def _about_samples(run: Run, steps: pl.DataFrame) -> Iterator[str]:
    """Yields why `distprof stats` prints another number of samples per second."""
    usual = step_time(steps)
    if usual is None:
        return
    samples, work = samples_of_step(run, steps, usual), workload(steps, usual)
    whole = f"whole steps take {duration(usual.time_ns)}"
    rate = f": {si(samples / work.usual_ns * 1e9)} samples/s" if samples and work is not None else ""
    yield f"{PARTS}; {whole}{rate}."


def _times(own: Row) -> StepSeconds | None:
    """Returns None if a time is unknown because there was no timed step, no backward or no optimizer."""
    times = [own[name] for name in ("fwd_ns", "bwd_ns", "optimizer_ns")]
    if None in times:
        return None
    forward, backward, step = (time / 1e9 for time in times)
    return StepSeconds(forward=forward, backward=backward, step=step)
