"""What one rank leaves in the run directory: its folder, its place in the job, its clock and its messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from distprof.contract.passes import PASS_NAMES
from distprof.contract.paths import FORMAT, RUN_JSON
from distprof.contract.rank_json import ParamCount, RankJson, Status
from distprof.contract.tables import COLLECTIVES, MODULES, STEPS, TableRow
from distprof.errors import UsageError
from distprof.model.modules import ModuleMap, Site
from distprof.model.packed_params import PackedParams
from distprof.model.params import count_own_params, count_params
from distprof.process.identity import Identity, device_name, tf32, versions
from distprof.process.topology import Topology, detect, from_sizes, unnamed_axis
from distprof.recording.attempts import begin_attempt
from distprof.recording.clock.client import ClockRecorder
from distprof.recording.communication.collective_rows import collective_rows
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.plan import StepPlan
from distprof.recording.run_directory import RankFolder, make_run_directory, run_id_in, run_id_of, this_launch
from distprof.terminal import say


class RankRecording:
    """The part of a run that one rank writes. The rank may be unknown until there is a process group."""

    def __init__(self, run: Path, *, sizes: Mapping[str, int], plan: StepPlan, force: bool) -> None:
        self._run = run
        self._run_id = ""
        self._sizes = sizes
        self._plan = plan
        self._force = force
        self.identity = Identity.read()
        """As far as it is known by now."""
        self._folder: RankFolder | None = None
        self._topology: Topology | None = None
        self._params = ModuleParams()
        self._steps: list[TableRow] = []
        self._notes: list[str] = []
        self.clock = ClockRecorder()

    @property
    def plan(self) -> StepPlan:
        """For as many ranks as are known by now."""
        return self._plan.for_ranks(self.identity.world_size)

    @property
    def rank_folder(self) -> Path | None:
        """Where this rank's files are now; None before there is a folder."""
        if self._folder is None:
            return None
        return next((path for path in (self._folder.path, self._folder.final) if path.exists()), None)

    def say(self, message: str) -> None:
        """One line on stderr."""
        say(f"rank {self.identity.rank}: {message}")

    def note(self, message: str) -> None:
        """One line on stderr that is kept in rank.json as well."""
        self._notes.append(message)
        self.say(message)

    def open(self) -> None:
        """Claims the rank's folder if the rank is known: under torchrun it is, else when a process group exists."""
        self.identity = Identity.read()
        if "RANK" in os.environ or self.identity.world_size > 1:
            self._claim()

    def _claim(self) -> RankFolder:
        """The rank's folder; rank 0 makes the run directory where no launcher did."""
        if self._folder is None:
            self.identity = Identity.read()
            self._run_id = run_id_of(os.environ, self._run)
            if self.identity.rank == 0 and run_id_in(self._run / RUN_JSON) != self._run_id:
                launch = this_launch(run_id=self._run_id, plan=str(self.plan), sizes=self._sizes,
                                     world_size=self.identity.world_size)
                make_run_directory(self._run, launch, force=self._force)
            if self.identity.rank == 0 and self.identity.attempt:
                begin_attempt(self._run, run_id=self._run_id, world_size=self.identity.world_size)
            self._folder = RankFolder(self._run, self.identity.rank, run_id=self._run_id,
                                      attempt=self.identity.attempt, force=self._force, tags=self.tags)
            self._folder.write_rank(self._rank_json("recording", None))
        return self._folder

    def tags(self) -> dict[str, Any]:
        """Rank, sizes and ids, which every file carries."""
        topology = self._known_topology()
        return {"format": FORMAT, "run_id": self._run_id, "rank": self.identity.rank,
                "world_size": self.identity.world_size, "mp_size": topology.mp_size, "dp_size": topology.dp_size,
                "topology": dict(topology.sizes), "coordinates": dict(topology.coordinates)}

    def _known_topology(self) -> Topology:
        if self._topology is None:
            self.identity = Identity.read()
            rank, world_size = self.identity.rank, self.identity.world_size
            try:
                self._topology = (
                    replace(from_sizes(self._sizes, rank=rank, world_size=world_size), unnamed_axis=unnamed_axis())
                    if self._sizes else detect(rank=rank, world_size=world_size))
            except UsageError as error:
                self.note(f"{error.args[0]}; the device mesh is used instead")
                self._topology = detect(rank=rank, world_size=world_size)
        return self._topology

    def add_step(self, row: TableRow) -> None:
        """Keeps a step and writes it down at once."""
        self._steps.append(row)
        self._claim().add_step(row)

    def flush(self, switch: PassSwitch, *, status: Status, why: str | None = None, elsewhere: bool = False) -> None:
        """Writes all tables that are known by now, and rank.json.

        Args:
            switch: The passes.
            status: `recording` where more steps follow that are needed.
            why: Why steps are missing.
            elsewhere: True on another thread than that of the steps, which hangs.
        """
        folder = self._claim()
        self.clock.pair()
        self._params.measure(switch.modules, self._known_topology)
        failure: Exception | None = None
        for write in self._writers(folder, switch, ended=status != "recording", elsewhere=elsewhere):
            try:
                write()
            except Exception as error:  # noqa: BLE001 (raised below: what is smaller may still find room)
                failure = failure or error
        if failure is not None:
            raise failure
        folder.write_rank(self._rank_json(status, why))

    def _writers(self, folder: RankFolder, switch: PassSwitch, *, ended: bool,
                 elsewhere: bool) -> Iterator[Callable[[], None]]:
        """What is to be written, in this order."""
        if self._params.total is not None:
            yield lambda: folder.write_rows(MODULES, self._module_rows(switch))
        if ended:
            yield lambda: folder.write_rows(STEPS, self._step_rows(switch))
        for one in switch.passes:
            yield partial(one.write, folder, self._steps, ended=ended, elsewhere=elsewhere)
        if ended and switch.labels_collectives:
            yield lambda: folder.write_rows(COLLECTIVES, self._collective_rows(switch))

    def _module_rows(self, switch: PassSwitch) -> list[TableRow]:
        sites = list(switch.modules.sites())
        rows = self._params.columns(sites)
        for one in switch.passes:
            for row, columns in zip(rows, one.module_columns(sites), strict=False):  # a pass may have none
                row |= columns
        return rows

    def _step_rows(self, switch: PassSwitch) -> list[TableRow]:
        for one in switch.passes:
            steps = (step for step in self._steps if step["pass"] == one.name)
            for step, columns in zip(steps, one.step_columns(), strict=False):  # the last step may not have ended
                step |= columns
        return self._steps

    def _collective_rows(self, switch: PassSwitch) -> list[TableRow]:
        # what follows the last step, a barrier or an evaluation, is no part of the arrivals pass
        steps = max(len(self._steps), self.plan.num_required)
        return collective_rows(call for call in switch.collectives.calls if call.step < steps)

    def complete(self) -> None:
        """Gives the folder its final name."""
        self._claim().complete()

    def fail(self, why: str) -> None:
        """Leaves the folder as it is, marked; what was flushed before stays."""
        if self._folder is not None and self._folder.path.exists():
            self._folder.write_rank(self._rank_json("failed", why))

    def _rank_json(self, status: Status, why: str | None) -> RankJson:
        known = self._topology
        return RankJson(
            run_id=self._run_id, status=status, why=why, notes=list(self._notes), **asdict(self.identity),
            topology=dict(known.sizes) if known else None, coordinates=dict(known.coordinates) if known else None,
            topology_source=known.source if known else None,
            mp_size=known.mp_size if known else None, dp_size=known.dp_size if known else None,
            plan=str(self.plan), num_steps=len(self._steps), passes=self._passes(),
            params=self._params.total,
            device_name=device_name(), tf32=tf32(), versions=versions(), clock=list(self.clock.pairs),
            clock_sync=self.clock.samples_until_now(), clock_note=self.clock.note)

    def _passes(self) -> dict[str, int]:
        names = [step["pass"] for step in self._steps]
        return {name: names.count(name) for name in PASS_NAMES}


class ModuleParams:
    """Parameters of this rank, in all and by module, counted while the modules are alive."""

    def __init__(self) -> None:
        self.total: ParamCount | None = None
        """Over all root modules; None before the first count."""
        self._by_site: dict[Site, TableRow] = {}

    def measure(self, modules: ModuleMap, topology: Callable[[], Topology]) -> None:
        """Counts if modules are new since the last time.

        Called between two steps, when FSDP has its shards in place.
        """
        sites = list(modules.sites())
        if not sites or len(sites) == len(self._by_site):
            return
        where, packed = topology(), PackedParams()
        self.total = count_params(modules.roots(), where, packed)
        self._by_site = {}
        for site in sites:
            module = site.module()
            if module is not None:
                self._by_site[site] = _columns(count_params([module], where, packed),
                                               count_own_params(module, where, packed))

    def columns(self, sites: Sequence[Site]) -> list[TableRow]:
        """The first columns of modules.parquet, one row per site."""
        return [{"module_path": site.path, "class_name": site.class_name, "depth": site.depth,
                 **self._by_site.get(site, _columns(ParamCount(), 0))} for site in sites]


def _columns(numbers: ParamCount, own_params: int) -> TableRow:
    same = ("params", "stored_params", "trainable_params", "param_bytes", "buffers", "buffer_bytes")
    return {**{name: getattr(numbers, name) for name in same}, "own_params": own_params,
            "dtype": max(numbers.dtypes, key=numbers.dtypes.__getitem__, default=None)}
