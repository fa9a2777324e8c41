"""What one rank leaves in the run directory: instruments come in, tables, a trace and rank.json go out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from distprof.contract.paths import FORMAT, RUN_JSON, TRACE_JSON
from distprof.contract.rank_json import ParamCount, RankJson, RunJson, Status
from distprof.contract.tables import COLLECTIVES, EVENTS, MODULES, OPS, PASSES, STEPS
from distprof.errors import UsageError
from distprof.model.modules import Site
from distprof.process.identity import Identity, device_name, tf32, versions
from distprof.process.topology import Topology, detect, from_sizes, unnamed_axis
from distprof.recording import table_rows as results
from distprof.recording.clock.client import ClockRecorder
from distprof.recording.communication.backend_times import time_calls
from distprof.recording.passes import Instruments
from distprof.recording.plan import StepPlan
from distprof.recording.rank_folder import RankFolder
from distprof.recording.run_directory import make_run_directory, run_id_in, run_id_of, this_launch

Row = dict[str, Any]


class Shard:
    """The part of a run that one rank writes."""

    def __init__(self, run: Path, *, sizes: Mapping[str, int], plan: StepPlan, force: bool) -> None:
        self._run = run
        self._run_id = ""
        self._sizes = sizes
        self._plan = plan
        self._force = force
        self._identity = Identity.read()
        self._folder: RankFolder | None = None
        self._topology: Topology | None = None
        self._params: tuple[ParamCount, dict[Site, ParamCount], dict[Site, int]] | None = None
        self._steps: list[Row] = []
        self._notes: list[str] = []
        self.clock = ClockRecorder()

    @property
    def rank(self) -> int:
        """Global rank, as far as it is known by now."""
        return self._identity.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job, likewise."""
        return self._identity.world_size

    @property
    def rank_folder(self) -> Path | None:
        """Where this rank's files are now; None before there is a folder."""
        if self._folder is None:
            return None
        return next((path for path in (self._folder.path, self._folder.final) if path.exists()), None)

    def say(self, message: str) -> None:
        """One line on stderr."""
        sys.stderr.write(f"distprof: rank {self._identity.rank}: {message}\n")  # one write: ranks share the stream
        sys.stderr.flush()

    def note(self, message: str) -> None:
        """One line on stderr that is kept in rank.json as well."""
        self._notes.append(message)
        self.say(message)

    def open(self) -> None:
        """Claims the rank's folder if the rank is known: under torchrun it is, else when a process group exists."""
        self._identity = Identity.read()
        if "RANK" in os.environ or self._identity.world_size > 1:
            self._claim()

    def _claim(self) -> RankFolder:
        """The rank's folder; rank 0 makes the run directory where no launcher did."""
        if self._folder is None:
            self._identity = Identity.read()
            self._run_id = run_id_of(os.environ, self._run)
            if self._identity.rank == 0 and run_id_in(self._run / RUN_JSON) != self._run_id:
                make_run_directory(self._run, self._launch(), force=self._force)
            self._folder = RankFolder(self._run, self._identity.rank, run_id=self._run_id,
                                      attempt=self._identity.attempt, force=self._force)
            self._folder.write_rank(self._rank_json("recording", None))
        return self._folder

    def _launch(self) -> RunJson:
        return this_launch(run_id=self._run_id, plan=str(self._plan), world_size=self._identity.world_size,
                           sizes=self._sizes)

    def tags(self) -> dict[str, Any]:
        """What every file is tagged with."""
        topology = self._known_topology()
        return {"format": FORMAT, "run_id": self._run_id, "rank": self._identity.rank,
                "world_size": self._identity.world_size, "mp_size": topology.mp_size, "dp_size": topology.dp_size,
                "topology": dict(topology.sizes), "coordinates": dict(topology.coordinates)}

    def _known_topology(self) -> Topology:
        if self._topology is None:
            self._identity = Identity.read()
            rank, world_size = self._identity.rank, self._identity.world_size
            try:
                self._topology = (
                    replace(from_sizes(self._sizes, rank=rank, world_size=world_size), unnamed_axis=unnamed_axis())
                    if self._sizes else detect(rank=rank, world_size=world_size))
            except UsageError as error:
                self.note(f"{error.args[0]}; the device mesh is asked instead")
                self._topology = detect(rank=rank, world_size=world_size)
        return self._topology

    def add_step(self, row: Row) -> None:
        """Keeps a step and writes it down at once."""
        self._steps.append(row)
        self._claim().add_step(row)

    def flush(self, instruments: Instruments, *, status: Status, why: str | None = None, timeline: bool = True) -> None:
        """Writes all tables that are known by now, and rank.json."""
        folder = self._claim()
        self.clock.pair()
        self._measure(instruments)
        ended = status != "recording"
        if instruments.count.num_steps:
            self._write(folder, OPS, results.op_rows(instruments.count))
        if self._params is not None:
            _, each, own = self._params
            self._write(folder, MODULES, results.module_rows(
                instruments.modules, each, own,
                instruments.count if instruments.count.num_steps else None,
                instruments.time if instruments.time.num_steps else None))
        if ended:
            self._write(folder, STEPS, self._split_steps(instruments))
            if timeline:
                self._write_timeline(folder, instruments)
            self._write_collectives(folder, instruments)
        folder.write_rank(self._rank_json(status, why))

    def _write_timeline(self, folder: RankFolder, instruments: Instruments) -> None:
        written = instruments.timeline.write(folder.path / TRACE_JSON)
        time_calls(instruments.collectives.calls, written.work)
        if written.events:
            folder.files[TRACE_JSON] = len(written.events)
            self._write(folder, EVENTS, results.with_steps(written.events, self._steps))

    def _write_collectives(self, folder: RankFolder, instruments: Instruments) -> None:
        if any(step["pass"] == "trace" for step in self._steps) or instruments.collectives.calls:
            self._write(folder, COLLECTIVES, results.collective_rows(instruments.collectives.calls))

    def _write(self, folder: RankFolder, table: Any, rows: list[Row]) -> None:
        tags = self.tags()
        folder.write_rows(table, rows, {name: tags[name] for name in ("rank", "mp_size", "dp_size")},
                          {f"distprof.{name}": str(value) for name, value in tags.items()})

    def _measure(self, instruments: Instruments) -> None:
        """Counts parameters between two steps, when FSDP has its shards in place and the modules are alive."""
        sites = list(instruments.modules.sites())
        if sites and (self._params is None or len(self._params[1]) != len(sites)):
            topology = self._known_topology()
            own = {site: results.own_params(site, topology) for site in sites}
            self._params = (*results.params_of(instruments.modules, topology), own)

    def _split_steps(self, instruments: Instruments) -> list[Row]:
        timed = [step for step in self._steps if step["pass"] == "time"]
        for index, step in enumerate(timed[:instruments.time.num_steps]):
            step |= asdict(instruments.time.split(index))
        return self._steps

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
            run_id=self._run_id, status=status, why=why, notes=list(self._notes), **asdict(self._identity),
            topology=dict(known.sizes) if known else None, coordinates=dict(known.coordinates) if known else None,
            topology_source=known.source if known else None,
            mp_size=known.mp_size if known else None, dp_size=known.dp_size if known else None,
            plan=str(self._plan), num_steps=len(self._steps), passes=self._passes(),
            params=self._params[0] if self._params is not None else None,
            device_name=device_name(), tf32=tf32(), versions=versions(), clock=list(self.clock.pairs),
            clock_sync=self.clock.samples_until_now(), clock_note=self.clock.note)

    def _passes(self) -> dict[str, int]:
        names = [step["pass"] for step in self._steps]
        return {name: names.count(name) for name in PASSES}

