"""The answers of `distprof mcp`: documents that commands print with `--json`, or parts of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distprof.contract.watch_state import WINDOWS, WatchFinding, WatchState, window_folder
from distprof.errors import DataError, DistprofError, UsageError
from distprof.launch.agents.bounded import answer
from distprof.launch.commands.watch import NOTHING
from distprof.launch.watching.watched_job import RunSource
from distprof.storage.places import place, remote
from distprof.terminal import quoted

KEPT_S, MOST_KEPT = 30.0, 4
"""Documents are cached for this many seconds, so that an agent can page through their rows; maximum number of them."""
OF_JOB = ("run_id", "time_ns", "running", "world_size", "num_steps", "first_watched", "elapsed_ns", "step_ns", "notes",
          "is_short", "unexplained")
OF_STATS = ("world_size", "missing_ranks", "step", "steps", "passes", "slowest_rank", "evaluation")
OF_COMMS = ("world_size", "missing_ranks", "steps", "step_time", "culprits", "kinds", "bandwidths", "slow_groups",
            "crowded", "shifting", "blind", "stuck", "coverage", "problems")
OF_OPS = ("world_size", "ranks", "steps", "totals", "coverage")
Document = dict[str, Any]


class RunAnswers:
    """Answers questions about a run, one at a time; the job may still run.

    Args:
        run: The run directory, or its URL.

    Every method raises a DistprofError with a hint if the run does not have the data.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._source = run, RunSource(run)
        self._kept: dict[tuple[Any, ...], tuple[float, Document]] = {}
        self._asked = threading.Lock()

    def findings(self, *, window: int | None, offset: int) -> str:
        """Returns the findings, worst first: first those about the whole job, then those about the recorded steps."""
        with self._asked:
            state = None if window is not None else self._state()
            rows = [] if state is None else [_watched(one) for one in sorted(state.findings, key=_rank_of_finding)]
            head: Document = {"run": str(self._run)} | ({} if state is None else {
                "running": state.running, "whole_job": f"steps {state.first_watched or 0}-{state.num_steps - 1}"})
            try:
                recorded = self._document("findings", window, {})
                if state is not None and state.running and not _has_steps(recorded["steps"]):
                    raise self._nothing_recorded()  # unfinished ranks are not a finding while they run
                head |= {"recorded": {name: recorded[name] for name in ("step", "steps", "missing_ranks")}}
                rows += [_recorded(one) for one in recorded["findings"]]
            except DistprofError as error:
                if state is None:
                    raise
                head["recorded_steps_unknown"] = str(error)
            return answer(head | {"windows": self._windows()}, "findings", rows, offset=offset,
                          hint="offset=N shows further findings; window=N those of a later recording")

    def steps(self, *, rank: int | None, each: bool, window: int | None, offset: int) -> str:
        """Returns step times, and what ranks spend them on."""
        with self._asked:
            stats = self._document("stats", window, {})
            if stats["kind"] != "traces" and stats["step"]["time_ns"] is None:
                raise self._nothing_recorded()
            times = {name: one for name, one in (stats["per_gpu"] or {}).items() if name.endswith("_ns")}
            comms = self._document("comms", window, {})
            rows = (comms["breakdown_by_step"] if each else comms["breakdown"]) or []
            head = {name: stats[name] for name in OF_STATS} | {"over_ranks": times}
            return answer(head, "steps_of_ranks" if each else "mean_step_of_ranks", _of_rank(rows, rank), offset=offset,
                          hint="rank=N shows one rank, each_step=true each recorded step, offset=N further rows; "
                               "watch_state covers all steps of the job")

    def comms(self, *, op: str | None, group: str | None, step: int | None, collective: int | None,
              window: int | None, offset: int) -> str:
        """Returns communication; with `collective`, what each rank did in it."""
        with self._asked:
            found = self._document("comms", window, {"op": op, "group": group, "step": step})
            if "collectives" not in found:  # the run consists of dumps of torch's flight recorder
                return answer(found)
            if not found["collectives"] and not found["steps"] and not found["stuck"]:
                raise self._nothing_recorded()
            if collective is not None:
                one = _collective(found["collectives"], collective)
                return answer({name: value for name, value in one.items() if name != "of_ranks"}, "of_ranks",
                              one.get("of_ranks", []), offset=offset, hint="offset=N shows further ranks")
            rows = sorted(found["collectives"], key=lambda one: -(one["arrival_spread_ns"] or 0))
            return answer({name: found[name] for name in OF_COMMS}, "collectives",
                          [{name: one[name] for name in one if name not in ("of_ranks", "group_ranks")}
                           for one in rows],
                          offset=offset, hint="op, group and step narrow it down; collective=N shows what each rank "
                                              "did; offset=N further ones")

    def ops(self, *, by: Sequence[str], sort: str, filters: Mapping[str, Any], window: int | None, offset: int) -> str:
        """Returns operators."""
        with self._asked:
            found = self._document("ops", window, {"by": tuple(by), "sort": sort, **filters})
            return answer({name: found[name] for name in OF_OPS}, "ops", found["ops"], offset=offset,
                          hint="op (a regex), module (a glob), rank, step and phase narrow it down; by groups "
                               "otherwise; offset=N shows further rows")

    def watch_state(self, *, rank: int | None, offset: int) -> str:
        """Returns the current state of the whole job according to the watch."""
        with self._asked:
            state = self._state()
            if state is None:
                raise DataError(f"{self._run}: {NOTHING}", hint="ask again later, or ask the other tools")
            late = {one for finding in state.findings for one in finding.ranks}
            ranks = sorted(state.ranks, key=lambda one: (
                one.rank not in late, one.waiting_ratio is None, one.waiting_ratio or 0.0, one.rank))
            rows = [msgspec.to_builtins(one) for one in ranks]
            for row in rows if rank is None else ():
                del row["recent_ns"]
            found = msgspec.to_builtins(state)
            said = [one.text for one in sorted(state.findings, key=_rank_of_finding)]
            return answer({name: found[name] for name in OF_JOB} | {"findings": said, "windows": self._windows()},
                          "ranks", _of_rank(rows, rank), offset=offset,
                          hint="rank=N shows one rank with its last minute; offset=N further ranks; the tool findings "
                               "has all fields of findings")

    def _state(self) -> WatchState | None:
        try:
            return self._source.state()
        except DataError:
            if (self._place() / WINDOWS).is_dir():
                raise
            return None  # foreign traces or a damaged state: the recorded steps can still be shown

    def _place(self) -> Path:
        """Returns the path of the run; if it is a URL, it is listed again."""
        return self._run if remote(self._run) is None else place(str(self._run))

    def _windows(self) -> list[int]:
        """Returns the numbers of recordings that were made later in the job."""
        try:
            names = [one.name for one in (self._place() / WINDOWS).iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def _nothing_recorded(self) -> DataError:
        return DataError("no step was recorded in detail yet", hint="watch_state and findings cover all steps of the "
                         f"job; `distprof trigger {quoted(self._run)}` records some while it runs")

    def _document(self, name: str, window: int | None, asked: Mapping[str, Any]) -> Document:
        """Returns what `distprof NAME --json` prints for the run, or for its N-th later recording (`window`)."""
        key, now = (name, window, *sorted(asked.items())), time.monotonic()
        if key in self._kept and now - self._kept[key][0] < KEPT_S:
            return self._kept[key][1]
        run = self._place()
        if window is not None:
            run, run_of = window_folder(run, window), run
            if not run.is_dir():
                raise UsageError(f"{run_of} has no recording {window}", hint=f"windows: {self._windows() or 'none'}")
        found: Document = json.loads(DOCUMENTS[name](run, asked))
        self._kept = dict([*self._kept.items()][-MOST_KEPT + 1:]) | {key: (now, found)}
        return found


def _findings(run: Path, _: Mapping[str, Any]) -> str:
    from distprof.launch.commands.findings import findings_text

    return findings_text(run, as_json=True)


def _stats(run: Path, _: Mapping[str, Any]) -> str:
    from distprof.launch.commands.stats import stats_text

    return stats_text(run, as_json=True)


def _comms(run: Path, asked: Mapping[str, Any]) -> str:
    from distprof.launch.commands.comms import comms_text
    from distprof.merge.cost.choice import Choice

    return comms_text(run, choice=Choice(**asked), as_json=True)


def _ops(run: Path, asked: Mapping[str, Any]) -> str:
    from distprof.launch.commands.ops import ops_text
    from distprof.merge.operators.selection import Selection

    chosen = {name: value for name, value in asked.items() if name not in ("by", "sort")}
    return ops_text(run, selection=Selection(**chosen), by=asked["by"] or ("op",), sort=asked["sort"], form="json")


DOCUMENTS: Mapping[str, Callable[[Path, Mapping[str, Any]], str]] = {
    "findings": _findings, "stats": _stats, "comms": _comms, "ops": _ops}


def _rank_of_finding(one: WatchFinding) -> tuple[bool, bool, float]:
    """Sort key: ongoing findings before past ones, then the most expensive first; pauses come last."""
    return one.kind == "pauses", one.until_step is not None, -(one.cost_ns or 0.0)


def _watched(one: WatchFinding) -> Document:
    """Returns a finding about the whole job."""
    rest = {name: value for name, value in msgspec.to_builtins(one).items() if name not in (
        "kind", "ranks", "hosts", "phase", "module", "line", "onset_step", "until_step", "text", "why")}
    return {"source": "whole job", "severity": "note" if one.kind == "pauses" else "bad", "kind": one.kind,
            "text": one.text, "ranks": one.ranks, "hosts": one.hosts, "phase": one.phase, "module": one.module,
            "line": one.line, "since_step": one.onset_step, "until_step": one.until_step, "why": one.why,
            "details": rest}


def _recorded(one: Mapping[str, Any]) -> Document:
    """Returns a finding about the recorded steps, with the same keys as those about the whole job."""
    cause = one.get("cause") or {}
    line = cause.get("line") or {}
    late = one.get("late_steps") or [one["step"]]
    rest = {name: value for name, value in one.items() if name not in (
        "severity", "text", "rank", "step", "module", "next")}
    return {"source": "recorded steps", "severity": one["severity"], "kind": "slow_rank" if cause else None,
            "text": one["text"], "ranks": [] if one["rank"] is None else [one["rank"]], "phase": cause.get("kind"),
            "module": one["module"], "line": f"{Path(line['file']).name}:{line['line']}" if line.get("file") else None,
            "since_step": late[0], "command": one["next"], "details": rest}


def _has_steps(steps: Mapping[str, Any] | None) -> bool:
    """Returns whether any step was recorded; True for foreign traces, which do not say."""
    return steps is None or bool(steps["num_recorded"])


def _of_rank(rows: Sequence[Document], rank: int | None) -> Sequence[Document]:
    """Returns the rows of a rank; all rows if `rank` is None."""
    if rank is None:
        return rows
    found = [row for row in rows if row["rank"] == rank]
    if rows and not found:
        raise UsageError(f"nothing is known about rank {rank}", hint="ranks are 0 to "
                                                                     f"{max(row['rank'] for row in rows)}")
    return found


def _collective(collectives: Sequence[Document], number: int) -> Document:
    found = next((one for one in collectives if one["collective"] == number), None)
    if found is None:
        raise UsageError(f"there is no collective {number}", hint="the answer without collective=N lists them")
    return found
