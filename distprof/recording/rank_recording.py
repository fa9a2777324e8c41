"""What one rank writes into the run directory: its folder, its place in the job, its clock and its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_fields

from distprof.contract import rank_json
from distprof.contract.passes import PASS_NAMES, USUAL, WAIT
from distprof.contract.paths import FORMAT, RANK_JSON
from distprof.contract.rank_json import RankFailure, RankJson, Status, StepsFound
from distprof.contract.tables import COLLECTIVES, COMPILATIONS, LINES, MODULES, PARAMETERS, STEPS, TableRow
from distprof.errors import UsageError
from distprof.helper import Helper
from distprof.model.modules import ModuleMap, Site
from distprof.process.accelerators import device_type
from distprof.process.identity import (
    Identity,
    device_name,
    in_process_group,
    peak_memory,
    tf32,
    versions,
)
from distprof.process.live_topology import detect, unnamed_axes
from distprof.process.topology import Topology, from_sizes
from distprof.recording.chosen_ranks import ChosenRanks
from distprof.recording.clock.client import ClockRecorder
from distprof.recording.communication.collective_call import collective_rows
from distprof.recording.compile_log import CompileLog
from distprof.recording.job.membership import GivenPlace, JobMembership
from distprof.recording.module_params import ModuleParams
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.plan import PlanProgress, StepPlan
from distprof.recording.run_directory import RankFolder
from distprof.terminal import say
from distprof.threads import UnseenThread, is_scarce

MOST_MODULES = 64
"""Maximum number of modules of a lightly recorded rank: whole levels of the tree, the same on all such ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRank:
    """What an earlier recording of the same process found out about the rank."""

    place: GivenPlace
    topology: Topology | None
    params: ModuleParams
    ranks: ChosenRanks | None


class RankRecording:
    """The part of a run that one rank writes. The rank may be unknown until a process group exists."""

    def __init__(self, run: Path, *, sizes: Mapping[str, int], plan: StepPlan, force: bool,
                 compilations: CompileLog, ranks: ChosenRanks | None = None,
                 steps_found: Callable[[ModuleMap], StepsFound | None] = lambda _: None,
                 known: KnownRank | None = None) -> None:
        self._run = run
        self._sizes = sizes
        self._plan = plan
        self._planned: tuple[int, StepPlan] | None = None
        self._force = force
        self._ranks = known.ranks if known else ranks
        self._light = False
        self._job = JobMembership(run, known.place if known else None)
        self.progress = PlanProgress(lambda: self.plan, tell=self._job.tell_paused, all_told=self._job.have_all_paused)
        self.failure: RankFailure | None = None
        """What ended the script; None while it runs or if it did not fail."""
        self.labels_last_calls = False
        """Whether collectives were labelled until the script failed."""
        self._has_last_calls = False
        self._device_clock_ns = 0
        self._folder: RankFolder | None = None
        self._topology = known.topology if known else None
        self._params = known.params if known else ModuleParams()
        self._checksums = known is None  # in a later recording, reading all parameters takes too long
        self._steps: list[TableRow] = []
        self._notes: list[str] = []
        self._has_late_notes = False
        """True once there is a note that is not in rank.json, which is complete."""
        self._compilations = compilations
        self._find_steps = steps_found
        self._steps_found: StepsFound | None = None
        self.clock = ClockRecorder(known.place.key if known else "")
        self._helper = Helper()

    @property
    def identity(self) -> Identity:
        """The identity as far as it is known."""
        return self._job.identity

    @property
    def plan(self) -> StepPlan:
        """The plan for the number of ranks that is known by now."""
        num_ranks = self.identity.world_size
        if self._planned is None or self._planned[0] != num_ranks:
            self._planned = num_ranks, self._plan.for_ranks(num_ranks)  # asked for twice per step
        return self._planned[1]

    def is_light(self) -> bool:
        """Returns whether --ranks did not select this rank; asked once the script has had time to create the mesh."""
        if self._ranks is not None:
            own = self.identity if self._folder is not None else Identity.read()
            self._light = not self._ranks.are_with(own, self._topology_by_now(own))
        return self._light

    def _topology_by_now(self, own: Identity) -> Topology | None:
        try:
            return self._topology or (from_sizes(self._sizes, rank=own.rank, world_size=own.world_size)
                                      if self._sizes else detect(rank=own.rank, world_size=own.world_size))
        except UsageError:  # reported once the topology is final
            return None

    @property
    def rank_folder(self) -> Path | None:
        """The current folder of this rank's files; None until there is one."""
        if self._folder is None:
            return None
        return next((path for path in (self._folder.path, self._folder.final) if path.exists()), None)

    def say(self, message: str) -> None:
        """Prints one line to stderr."""
        say(f"rank {self.identity.rank}: {message}")

    def note(self, message: str) -> None:
        """Prints one line to stderr and keeps it in rank.json."""
        self._notes.append(message)
        self._has_late_notes = self.is_complete
        self.say(message)

    def open(self) -> None:
        """Creates the rank's folder if rank and run are known, else later: with a process group or the first step."""
        if self._job.is_known():
            self._claim()

    def later(self, number: int, *, first_step: int, plan: StepPlan) -> KnownRank:
        """Returns what the N-th later recording starts with, which begins in step `first_step` of the job."""
        place = self._job.later(number, first_step=first_step, plan=str(plan))
        return KnownRank(place=place, topology=self._topology, params=self._params, ranks=self._ranks)

    @property
    def is_complete(self) -> bool:
        """True once its folder has its final name."""
        return self._folder is not None and self._folder.is_complete

    def is_superfluous(self, *, tentative: bool) -> bool:
        """Returns whether this process, in which no step was found, is not a rank but, for example, only started ranks.

        Args:
            tentative: True if nobody started it as a rank.
        """
        if self._folder is not None or in_process_group():
            return False
        return tentative or (self.identity.world_size == 1 and any(self._run.glob(f"rank*/{RANK_JSON}")))

    def _claim(self) -> RankFolder:
        """Returns the rank's folder, creating it; the first rank creates the run directory if no launcher did."""
        if self._folder is None:
            self._job.look()
            self._job.enter(plan=str(self.plan), sizes=self._sizes, force=self._force)
            self._folder = RankFolder(self._run, self.identity.rank, run_id=self._job.run_id, force=self._force,
                                      tags=self.tags, helper=self._helper)
            self._folder.write_rank(self._rank_json("recording", None))
        return self._folder

    def tags(self) -> dict[str, Any]:
        """Returns rank, sizes and ids, which every file carries."""
        topology = self._known_topology()
        return {"format": FORMAT, "run_id": self._job.run_id, "rank": self.identity.rank,
                "world_size": self.identity.world_size, "mp_size": topology.mp_size, "dp_size": topology.dp_size,
                "topology": dict(topology.sizes), "coordinates": dict(topology.coordinates)}

    def _known_topology(self) -> Topology:
        if self._topology is None:
            if self._folder is None:
                self._job.look()
            rank, world_size = self.identity.rank, self.identity.world_size
            try:
                self._topology = (
                    replace(from_sizes(self._sizes, rank=rank, world_size=world_size), unnamed_axes=unnamed_axes())
                    if self._sizes else detect(rank=rank, world_size=world_size))
            except UsageError as error:
                self.note(f"{error.args[0]}; using the device mesh instead")
                self._topology = detect(rank=rank, world_size=world_size)
        return self._topology

    def add_step(self, row: TableRow) -> None:
        """Adds a step and writes it to a file at once."""
        self._steps.append(row)
        self._claim().add_step(row)

    def start_over(self) -> None:
        """Drops all steps, and the files that were written."""
        self._steps, self._notes, self._steps_found, self._topology = [], [], None, None
        self._compilations.start_over()
        self.forget_models()
        if self._folder is not None:
            self._folder.start_over()
            self._folder.write_rank(self._rank_json("recording", None))

    def forget_models(self) -> None:
        """Forgets the parameters of the models, which are measured again."""
        self._params = ModuleParams()

    def look_at_models(self, switch: PassSwitch) -> None:
        """Counts parameters of new models, between two steps: the script may drop the models before the pass ends."""
        if self._params.lacks(switch.modules):
            self._params.measure(switch.modules, self._known_topology, checksums=self._checksums)

    def flush(self, switch: PassSwitch, *, status: Status, why: str | None = None, elsewhere: bool = False) -> None:
        """Writes all tables as far as they are known, and rank.json.

        Args:
            switch: The passes.
            status: `recording` if needed steps follow.
            why: Why steps are missing; None if none are.
            elsewhere: True on another thread than that of the steps, which hangs.
        """
        folder = self._claim()
        if status != "recording":
            self._note_missed()
        self._job.learn(last=status != "recording")
        self.clock.pair()
        self._device_clock_ns = switch.collectives.device_clock_ns
        self._params.measure(switch.modules, self._known_topology, checksums=self._checksums and not elsewhere)
        self._steps_found = self._find_steps(switch.modules)
        failure: Exception | None = None
        for write in self._writers(folder, switch, ended=status != "recording", elsewhere=elsewhere):
            try:
                write()
            except Exception as error:  # noqa: BLE001 (raised below: smaller files may still find room)
                failure = failure or error
        if failure is not None:
            raise failure
        folder.write_rank(self._rank_json(status, why))

    def _note_missed(self) -> None:
        missed, self.progress.missed = self.progress.missed, Counter()
        lost = ", ".join(f"{number} of {name}" for name, number in missed.items() if name != WAIT)
        if lost:
            self.note(f"the script ran its own torch.profiler, so these steps are missing on this rank: {lost}")

    def _writers(self, folder: RankFolder, switch: PassSwitch, *, ended: bool,
                 elsewhere: bool) -> Iterator[Callable[[], None]]:
        """Yields the functions that write files, in this order."""
        if self._params.total is not None:
            yield lambda: folder.write_rows(MODULES, self._module_rows(switch))
        if self._params.rows:
            yield lambda: folder.write_rows(PARAMETERS, self._params.rows)
        if ended:
            yield lambda: folder.write_rows(STEPS, self._step_rows(switch))
        for one in switch.passes:
            yield partial(one.write, folder, self._steps, ended=ended, elsewhere=elsewhere)
        if self._compilations.has_news:
            yield lambda: folder.write_rows(COMPILATIONS, self._compilations.rows())
        if ended and switch.lines.was_on:
            yield lambda: folder.write_rows(LINES, switch.lines.rows(len(self._steps)))
        if ended and switch.labels_collectives:
            yield lambda: folder.write_rows(COLLECTIVES, self._collective_rows(switch))

    def _module_rows(self, switch: PassSwitch) -> list[TableRow]:
        sites = list(switch.modules.sites())
        if self._light:
            sites = _top_levels(sites)
        rows = self._params.columns(sites)
        for one in switch.passes:
            for row, columns in zip(rows, one.module_columns(sites), strict=False):  # a pass may have no rows
                row |= columns
        return rows

    def _step_rows(self, switch: PassSwitch) -> list[TableRow]:
        for one in switch.passes:
            steps = (step for step in self._steps if step["pass"] == one.name)
            for step, columns in zip(steps, one.step_columns(), strict=False):  # the last step may not have ended
                step |= columns
        return self._steps

    def _collective_rows(self, switch: PassSwitch) -> list[TableRow]:
        # a barrier or an evaluation after the last step is not part of the arrivals pass
        steps = max(len(self._steps), self.plan.num_required)
        waited = {row["step"] for row in self._steps if row["pass"] == WAIT}  # a pass was interrupted in this step
        calls = switch.collectives.calls
        self._has_last_calls = self.labels_last_calls and all(call.step < steps for call in calls)
        return collective_rows(call for call in calls if call.step < steps and call.step not in waited)

    def complete(self) -> None:
        """Gives the folder its final name, and adds the rank to the file of its host."""
        self._claim().complete()
        self._summarise()

    def _summarise(self) -> None:
        """Adds the rank to its host's file, on a thread that gets no signals; pyarrow's threads inherit this."""
        if is_scarce():
            self._add_summary()
            return
        adding = UnseenThread(self._add_summary)
        adding.start()
        adding.join()

    def _add_summary(self) -> None:
        """Adds the rank to its host's file; if that fails, readers of the run read the rank's tables instead."""
        folder = self.rank_folder
        try:
            if folder is not None:
                self._helper.call("distprof.summaries.maker:add_summary", self._run.absolute(), folder.absolute())
        except Exception as error:  # noqa: BLE001 (the recording is complete without it)
            self.say(f"not in the file of its host, so commands read its tables instead: {error}")

    def stop(self) -> None:
        """Ends threads and connections, closes files."""
        self._job.stop()
        self.clock.stop()
        self._helper.close()
        if self._folder is not None:
            self._folder.close()

    def forget(self) -> None:
        """Leaves the parent's connections and helper alone; called in a forked child."""
        self.clock.forget()
        self._helper.forget()

    def add_end(self) -> None:
        """Adds what happened after the folder was written: compilations, notes, and what ended the script."""
        folder = self.rank_folder
        try:
            is_news = self.failure or self._compilations.has_news or self._has_late_notes
            if folder is not None and self._folder is not None and is_news:
                if self._compilations.has_news:
                    self._folder.write_rows(COMPILATIONS, self._compilations.rows())
                about = rank_json.read(folder / RANK_JSON, RankJson)
                rank_json.write(folder / RANK_JSON, replace_fields(
                    about, failure=self.failure, notes=list(self._notes), files={**about.files, **self._folder.files}))
                if self._folder.is_complete:
                    self._summarise()
                self._helper.close()
        except Exception:  # noqa: BLE001 (the recording is complete without it, and the script ends as it would have)
            return

    def fail(self, why: str) -> None:
        """Marks the folder as failed; what was flushed before stays."""
        if self._folder is not None and not self._folder.is_complete and self._folder.path.exists():
            self._folder.write_rank(self._rank_json("failed", why))

    def _rank_json(self, status: Status, why: str | None) -> RankJson:
        known = self._topology
        return RankJson(
            run_id=self._job.run_id, status=status, why=why, failure=self.failure,
            has_last_calls=self._has_last_calls, light=self._light, notes=list(self._notes),
            **asdict(self.identity),
            topology=dict(known.sizes) if known else None, coordinates=dict(known.coordinates) if known else None,
            topology_source=known.source if known else None, topology_basis=known.basis if known else None,
            mp_size=known.mp_size if known else None, dp_size=known.dp_size if known else None,
            plan=str(self.plan), num_steps=len(self._steps), passes=self._passes(),
            profiled_steps=[step for step in self.progress.paused_steps if step < len(self._steps)],
            params=self._params.total, steps_found=self._steps_found,
            device_name=device_name(), device_type=device_type(), tf32=tf32(), versions=versions(),
            peak_memory=peak_memory(), clock=list(self.clock.pairs), clock_sync=self.clock.samples_until_now(),
            clock_note=self.clock.note, device_clock_ns=self._device_clock_ns)

    def _passes(self) -> dict[str, int]:
        names = [step["pass"] for step in self._steps]
        usual = {row.name for row in USUAL}
        return {name: names.count(name) for name in PASS_NAMES if name in usual or name in names}


def _top_levels(sites: Sequence[Site]) -> list[Site]:
    """Returns the sites of depth 0 and 1, and of further levels as long as they are at most `MOST_MODULES` in all."""
    by_depth = Counter(site.depth for site in sites)
    deepest = 1
    while deepest < max(by_depth, default=0) and sum(
            number for depth, number in by_depth.items() if depth <= deepest + 1) <= MOST_MODULES:
        deepest += 1
    return [site for site in sites if site.depth <= deepest]
