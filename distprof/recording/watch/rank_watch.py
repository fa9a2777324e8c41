"""The watch of a rank: logs every step from the end of the passes to the end of the script."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from torch import Event, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer

from distprof.contract.watch import Note, is_sampled
from distprof.files import HINTS
from distprof.model.compiled import never_compile
from distprof.model.modules import Site
from distprof.model.quiet import is_traced, unnoticed
from distprof.model.scopes import NO_GRAPH_TASK, graph_task
from distprof.own import lock, time
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.rank_recording import RankRecording
from distprof.recording.run_directory import WATCH
from distprof.recording.steps.evaluation import CallsWithoutGradient
from distprof.recording.steps.finder import StepFinder
from distprof.recording.watch import rows
from distprof.recording.watch.device_marks import DeviceMarks
from distprof.recording.watch.root_phases import RootPhases
from distprof.recording.watch.rows import GarbageTime, Row, Rows
from distprof.recording.watch.run_log import RunLog, run_log
from distprof.recording.watch.sampled_steps import SampledSteps
from distprof.recording.watch.watch_file import WatchFile
from distprof.sizes import watch_bytes

RARE = 0.5
"""If a larger fraction of steps has calls without gradients, these are part of the work, not evaluation."""
PATIENCE_S = 0.1
"""Time in seconds to wait for another thread that makes rows, which takes it less than a millisecond."""
MOST_ENDED = 1 << 15
"""Number of steps after which rows are made on this thread, in case the one that writes hangs: some 8 MB."""
AHEAD = 16
"""Number of steps ahead in which the next sampled step is looked for."""


class Looks(Protocol):
    """Looks for requests of later recordings at the end of each row."""

    @property
    def is_pending(self) -> bool:
        """True while a recording waits for its step: then rows end with every step."""

    def look(self, step: int) -> None:
        """Called on the thread of the steps when this step has ended. It may call `RankWatch.pause`."""


class RankWatch:
    """Logs steps between `start` and `stop`, except between `pause` and `resume`."""

    def __init__(self, finder: StepFinder, passes: PassSwitch, rank: RankRecording, calls: CallsWithoutGradient, *,
                 wanted: bool = True) -> None:
        """Begins switched off.

        Args:
            finder: Finds out what ends a step.
            passes: The passes of the recording, which know the models.
            rank: What the recording writes.
            calls: Tells later recordings which calls without gradients are evaluation.
            wanted: False for a later recording, as the first one watches the job.
        """
        self._wanted = wanted
        self.is_on = False
        """True while steps are logged."""
        self.windows: Looks | None = None
        self.step = 0
        """The running step."""
        self._finder, self._passes, self._rank, self._calls = finder, passes, rank, calls
        self._file: WatchFile | None = None
        self._log: RunLog | None = None
        self._thread = 0
        self._marks = DeviceMarks()
        self._phases = RootPhases(passes.phases, finder, self._marks.phases, self._guarded(self._on_root), self._fail)
        self.before_optimizer = self._phases.before_optimizer
        """Called before an optimizer steps, as in `Later`."""
        self._garbage = GarbageTime()
        self._rows = Rows(self._garbage)
        self._samples = SampledSteps(passes.scopes, lambda: self.step, self._labelling)
        self._explicit = self._guarded(self._on_explicit)
        self._row_ends_ns = self._due_ns = self._next = 0
        """When the row ends, when rows are due (`perf_counter_ns`), and the step after which `_between` is called at
        the latest."""
        self._evaluated = self._seen = 0
        self._batch = 0, 0
        """When the batch of rows began (`perf_counter_ns`), and its first step."""
        self._rows_lock = lock()
        never_compile(type(self).after_optimizer)

    @property
    def are_wanted(self) -> bool:
        """False if it is unknown what ends a step, or the user wants no watch."""
        return self._wanted and self._finder.rule is not None and os.environ.get(WATCH) != "off"

    def start(self, first: int) -> None:
        """Begins with step `first`, if the watch is wanted."""
        folder = self._rank.rank_folder
        if folder is None or not self.are_wanted:
            return
        try:
            self._file = WatchFile(folder, watch_bytes(os.environ), self._rows_overdue, self._fail)
            self._file.start()
            self._thread = get_ident()
            self._log = run_log(folder, self._rank.identity.rank, self._rank.say)
            if self._log is not None:
                self._log.start()
            self.resume(first)
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._fail(error)

    def resume(self, first_step: int) -> None:
        """Begins to log on this thread, with step `first_step`."""
        if self._file is None or self.is_on:
            return
        self.is_on, self.step = True, first_step
        self._garbage.start()
        with self._rows_lock:
            self._rows.begin(first_step)
            self._marks.begin()
            self._await_rows()
            self._phases.start(_roots(self._passes))
        self._begin_step()

    def pause(self) -> None:
        """Stops logging for now; nothing of ours stays in the process except the hooks of optimizers."""
        if self.is_on:
            with unnoticed():
                self._end_row(0)
                self._log_rows(PATIENCE_S)
                self._take_away()

    def note(self, kind: str, text: str = "", *, step: int | None = None) -> None:
        """Logs an event, in the running step unless another one is given."""
        file = self._file  # another thread may remove it, if it cannot write
        if file is not None:
            file.note(Note(time_ns=time.time_ns(), step=self.step if step is None else step, kind=kind, text=text))

    def stop(self, why: str = "") -> None:
        """Writes everything that is not written yet when the script ends; no more steps are logged."""
        try:
            self.pause()
        except Exception:  # noqa: BLE001 (the script ends as it would have)
            self.is_on = False
        file = self._file
        if file is not None:
            self.note("ended", why)
            file.close()
            self._file = None
        if self._log is not None:
            self._log.stop()

    def flush(self, why: str) -> None:
        """Writes everything because a signal is about to end the process; may be called on any thread."""
        file = self._file
        if file is not None:
            self.note("ended", why)
            file.flush(at_end=True)

    def forget(self) -> None:
        """Stops logging in a forked child: the parent logs its own steps."""
        self._file = self._log = None
        if self.is_on:
            self._take_away()

    # --- what happens in the script --------------------------------------------------------------------------------

    def after_optimizer(self, optimizer: Optimizer, *, called: bool = True, skipped: bool = False) -> None:
        """Called after an optimizer stepped in a call or a replayed graph, or a gradient scaler skipped its step."""
        if is_compiling() or not self.is_on or is_traced() is not None:
            return
        try:
            inside = graph_task() != NO_GRAPH_TASK
            counts = self._phases.after_optimizer(optimizer) if called else get_ident() == self._thread
            finder = self._finder
            rule = finder.rule
            if rule == "explicit" or not (inside or counts):
                return
            ended = finder.after_optimizer(optimizer, in_backward=inside, skipped=skipped)
            if rule == "forward" and finder.was_mistaken and not inside:  # this may be a thread of autograd
                self._begin_training()
                ended = finder.after_optimizer(optimizer, skipped=skipped)
            if ended and not inside:
                self._step_ended(self._phases.last_mark if called else None)
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._fail(error)

    def explicit_step(self) -> None:
        """Called when the script explicitly ends a step."""
        self._explicit()

    def _on_explicit(self) -> None:
        if (self._finder.rule == "explicit" or self._finder.waiting) and self._finder.explicit():
            self._step_ended()

    def _begin_training(self) -> None:
        """From now on, optimizers end steps: all that came before was inference."""
        with unnoticed():
            self._end_row(0)
            self._log_rows(PATIENCE_S)
            self._finder.start_over()
            self._calls.start_over()
            self._passes.modules.start_over()
            self._rank.forget_models()
            self._await_rows()
            self._rank.note(f"an optimizer steps from step {self.step} on, after the passes were over: they show only "
                            "the inference before  hint: distprof trigger records steps of the training")

    def _on_root(self, module: nn.Module) -> None:
        if self._finder.was_mistaken:  # an optimizer stepped during backward
            self._begin_training()
        modules = self._passes.modules
        site = modules.find(module) or modules.add_root(module)
        if self._finder.before_root(site, evaluates=self._passes.phases.num_evaluations > 0):
            self._step_ended()

    # --- steps -----------------------------------------------------------------------------------------------------

    def _step_ended(self, mark: Event | None = None) -> None:
        now = self._phases.end_step(mark)
        self.step = step = self.step + 1
        is_due = now >= self._row_ends_ns
        if is_due:
            self._end_row(now)
            is_due = now >= self._due_ns
        if is_due or step >= self._next or self._phases.is_evaluated:
            with unnoticed():
                self._between(is_due=is_due)

    def _between(self, *, is_due: bool) -> None:
        """Does work that few steps need. Its time belongs to no step: the next one begins when it ends."""
        if self._phases.is_evaluated:
            self._on_evaluation()
        if self._samples.is_running:
            self._samples.end(self._phases.last_span_ns)
        if is_due:
            self._on_due()
        if self.is_on:
            if is_sampled(self.step, self._samples.exponent):
                self._samples.begin(self.step)
            self._begin_step()

    def _begin_step(self) -> None:
        """Moves the start of the running step to now."""
        step, exponent = self.step, self._samples.exponent
        ahead = 1 if self._samples.is_running else next(
            (ahead for ahead in range(1, AHEAD) if is_sampled(step + ahead, exponent)), AHEAD)
        self._next = step + ahead
        self._phases.begin()

    def _end_row(self, now: int) -> None:
        self._rows.end(self.step, self._marks.cut, is_inference=self._finder.rule == "forward")
        self._row_ends_ns = now + rows.ROW_NS if self._due_ns else 0

    def _on_due(self) -> None:
        self._log_rows()
        if self._log is not None:
            self._log.look()
        if self.windows is not None:
            self.windows.look(self.step - 1)
        self._await_rows()

    def _await_rows(self) -> None:
        now = time.perf_counter_ns()
        self._batch = now, self.step
        is_pending = self.windows is not None and self.windows.is_pending
        self._row_ends_ns, self._due_ns = (0, 0) if is_pending else (now + rows.ROW_NS, now + rows.BATCH_NS)

    def _log_rows(self, patience_s: float = 0.0) -> None:
        file = self._file
        if file is None:
            self._take_away()  # another thread could not write
            return
        settled: list[Row] = []
        if patience_s or self._marks.need_thread_of_steps or self._phases.num_ended > MOST_ENDED:
            self._make_rows(measures=True, patience_s=patience_s)
            settled = self._marks.settled()
        began_ns, first = self._batch
        num_steps = self.step - first
        samples = self._samples.rows_ended(time.perf_counter_ns() - began_ns, num_steps) if num_steps else []
        file.add(settled, samples)

    def _make_rows(self, *, measures: bool, patience_s: float) -> None:
        """Makes rows of what was noted at their ends, unless somebody else still does so after `patience_s` seconds:
        another thread, or code that this one interrupted as a signal handler."""
        if not self._rows_lock.acquire(timeout=patience_s):
            return
        try:
            made = self._rows.taken(self._phases.taken, measures=measures)
            self._seen += sum(row["num_steps"] for row, _ in made)
            self._marks.end(made)
        finally:
            self._rows_lock.release()

    def _on_evaluation(self) -> None:
        self._evaluated += 1
        if self._finder.is_training and self._evaluated < RARE * (self._seen + self._phases.num_ended):
            self.note("evaluation", step=self.step - 1)

    def _rows_overdue(self, every: bool) -> list[dict[str, int]]:  # noqa: FBT001 (a callback)
        """Returns rows of which the thread of the steps makes none, or not in time; any thread may call it."""
        self._rows.measure_host()
        if every or not self._marks.need_thread_of_steps or time.perf_counter_ns() > self._due_ns + rows.BATCH_NS:
            self._make_rows(measures=False, patience_s=PATIENCE_S)
        return self._marks.overdue(all_of_them=every)

    def _take_away(self) -> None:
        self.is_on = False
        self._phases.stop()
        self._garbage.stop()
        samples = self._samples.stop()
        file = self._file
        if file is not None:
            file.add(self._marks.settled(), samples)

    # --- faults ----------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Ends the watch after an error; may be called on any thread."""
        file, self._file = self._file, None
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        hint = HINTS.get(error.errno or 0) if isinstance(error, OSError) else None
        if file is not None:
            self._rank.say(f"steps are no longer watched, training continues: {why}{f'  hint: {hint}' if hint else ''}")
        if self.is_on and get_ident() == self._thread:
            try:
                self._take_away()
            except Exception:  # noqa: BLE001 (nothing may reach the script)
                self.is_on = False

    def _labelling(self, function: Callable[..., None]) -> Callable[..., None]:
        def unseen(*args: Any, **kwargs: Any) -> None:
            with unnoticed():
                function(*args, **kwargs)

        return self._guarded(unseen)

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Wraps a function that the script's threads call: an error ends the watch and nothing else."""
        def guarded(*args: Any, **kwargs: Any) -> None:
            if is_compiling() or not self.is_on or is_traced() is not None:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 (the training job always survives us)
                self._fail(error)

        never_compile(guarded)
        return guarded


def _roots(passes: PassSwitch) -> list[Site]:
    return [model.root for model in passes.modules.models]
