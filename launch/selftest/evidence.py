"""What distprof found in a job of the self-test, what the job itself measured, and how claims compare the two."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import polars as pl

from distprof.contract.passes import TRACE
from distprof.contract.paths import MERGED, TRACE_JSON
from distprof.errors import DataError, in_one_line
from distprof.merge.run.open_run import open_run
from distprof.merge.run_frames import read_run
from distprof.merge.waits.script_lines import script_lines
from distprof.units import duration

RANK = re.compile(r"rank (\d+)\b")
MARK = "# planted: "
"""Comment in a script that marks a line that distprof should find; a name follows it at the end of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What one rank measured itself."""

    rank: int
    facts: dict[str, Any]
    steps: list[dict[str, float]]
    failed: dict[str, str]


def planted_in(folder: Path) -> list[Planted]:
    """Returns what all ranks measured, sorted by rank; ranks that failed are missing."""
    found = [Planted(**json.loads(file.read_text())) for file in folder.glob("planted*.json")]
    return sorted(found, key=lambda one: one.rank)


class Evidence:
    """A recorded job and its merge; each part is read when a claim needs it.

    Args:
        run: The run directory.
        planted: What its ranks measured themselves; at least one.
    """

    def __init__(self, run: Path, planted: Sequence[Planted]) -> None:
        self.run, self.planted = run, planted
        self.facts = planted[0].facts
        self.late_rank = planted[-1].rank
        self._frames = read_run(run)

    def failure(self, part: str) -> str | None:
        """Returns why a rank could not run a part of the job; None if all ranks could."""
        return next((f"rank {one.rank}, {one.failed[part]}" for one in self.planted if part in one.failed), None)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `stats --json` prints."""
        return self._frames.summary

    @cached_property
    def ops(self) -> pl.DataFrame:
        """Calls and device work of all ranks, as in `ops`."""
        return self._frames.ops()

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """One row per rank and collective, as in `comms`."""
        return self._frames.collectives()

    @cached_property
    def steps(self) -> pl.DataFrame:
        """All recorded steps."""
        return self._frames.steps()

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Lines of the script in `waits --json`."""
        return script_lines(open_run(self.run)).to_dicts()

    @cached_property
    def blamed(self) -> pl.DataFrame:
        """Rows of `findings` that name a late rank."""
        return self._frames.findings().filter(pl.col("gain_ns").is_not_null())

    @cached_property
    def culprits(self) -> list[dict[str, Any]]:
        """Late ranks that are certain, from `stats --json`."""
        found: list[dict[str, Any]] = (self.summary["communication"] or {"culprits": []})["culprits"]
        return [one for one in found if one["certain"]]

    @cached_property
    def _merged(self) -> list[dict[str, Any]]:
        return read_events(self.run / MERGED / TRACE_JSON)

    @property
    def trace(self) -> list[dict[str, Any]]:
        """Slices of the merged trace, ordered by start."""
        return sorted((one for one in self._merged if one.get("ph") == "X"), key=lambda one: float(one["ts"]))

    @property
    def rank_of_process(self) -> dict[int, int]:
        """Process id in the merged trace -> rank; each rank has one process for its CPU, and one for each GPU."""
        named = {one["pid"]: RANK.match(one["args"]["name"]) for one in self._merged
                 if one.get("ph") == "M" and one.get("name") == "process_name"}
        return {process: int(found[1]) for process, found in named.items() if found is not None}

    @cached_property
    def modules(self) -> pl.DataFrame:
        """Modules, reduced over ranks, as in `stats --modules`."""
        return self._frames.modules()

    def module(self, path: str) -> dict[str, Any]:
        """Returns the row of a module.

        Raises:
            DataError: There is no such module.
        """
        found = self.modules.filter(pl.col("module_path") == path).to_dicts()
        if not found:
            raise DataError(f"no module {path!r} in the run")
        return found[0]

    def steps_of(self, name: str) -> list[int]:
        """Returns the sorted steps of a pass.

        Raises:
            DataError: There are none.
        """
        found = sorted(self.steps.filter(pl.col("pass") == name)["step"].unique().to_list())
        if not found:
            raise DataError(f"no step of the {name} pass in the run")
        return found

    def inner_steps(self, name: str) -> list[int]:
        """Returns the steps of a pass without the first and the last one, in which the pass starts and stops."""
        return self.steps_of(name)[1:-1]

    @property
    def num_traced(self) -> int:
        """Number of steps with a timeline."""
        return len(self.steps_of(TRACE))

    def planted_ns(self, name: str, steps: Sequence[int], ranks: Sequence[int] | None = None) -> float:
        """Returns the mean duration of a part that ranks measured in these steps; `ranks=None`: all ranks."""
        return fmean(one.steps[step][name] for one in self.planted if ranks is None or one.rank in ranks
                     for step in steps)

    def line_of(self, mark: str) -> tuple[str, int]:
        """Returns file name and number of the line that the script marks with `mark`."""
        text = Path(self.facts["script"]).read_text()
        numbers = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"{MARK}{mark}")]
        return Path(self.facts["script"]).name, numbers[0]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a Chrome trace."""
    with gzip.open(path, "rt") as file:
        found = json.load(file)
    events: list[dict[str, Any]] = found["traceEvents"] if isinstance(found, dict) else found
    return events


RATIO, LEAST_NS = 0.1, 2e6
"""Relative and least absolute tolerance for times: a tenth, and 2 ms for times below 20 ms."""
SAMPLE_NS = 25e6
"""Sampling interval of script lines in ns: per step, a time may be off by one sample."""


class Judged(NamedTuple):
    """What a claim expects, what was found, and whether it holds."""

    expected: str
    found: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that is known about a job, and the check that distprof finds it."""

    text: str
    judge: Callable[[Evidence], Judged]
    part: str | None = None
    """Part of the job that the claim needs; if it failed, the claim fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of a claim about one job."""

    job: str
    claim: str
    expected: str
    found: str
    holds: bool


def rows(job: str, claims: tuple[Claim, ...], evidence: Evidence) -> list[Row]:
    """Judges all claims about a job; one that cannot be judged does not hold, and `found` has the reason."""
    return [Row(job=job, claim=claim.text, **_judged(claim, evidence)._asdict()) for claim in claims]


def _judged(claim: Claim, evidence: Evidence) -> Judged:
    try:
        failed = evidence.failure(claim.part) if claim.part is not None else None
        return claim.judge(evidence) if failed is None else Judged("-", f"the job could not do it: {failed}", False)
    except Exception as error:  # noqa: BLE001 (other claims can still be judged)
        return Judged("-", in_one_line(error), False)


def exact(expected: float, found: float | None, unit: str = "") -> Judged:
    """Judges counts and bytes, which must be equal."""
    return Judged(_number(expected, unit), _number(found, unit), found is not None and found == expected)


def same(expected: str, found: str) -> Judged:
    """Judges names and locations, which must be equal."""
    return Judged(expected, found, expected == found)


def near(expected_ns: float, found_ns: float | None, slack_ns: float = LEAST_NS, ratio: float = RATIO) -> Judged:
    """Judges a time, which may differ by `ratio` of the expected time or by `slack_ns`, whichever is more."""
    within = max(ratio * expected_ns, slack_ns)
    holds = found_ns is not None and abs(found_ns - expected_ns) <= within
    return Judged(f"{duration(expected_ns)} ± {duration(within)}", duration(found_ns), holds)


def at_most(limit_ns: float, found_ns: float) -> Judged:
    """Judges a time that has an upper limit."""
    return Judged(f"at most {duration(limit_ns)}", duration(found_ns), found_ns <= limit_ns)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    text = f"{int(value):,}" if float(value).is_integer() else f"{value:,.3f}"
    return f"{text} {unit}".rstrip()
