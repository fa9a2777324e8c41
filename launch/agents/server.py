"""The server of `distprof mcp`: five tools on standard input and output. Their docstrings are sent to the agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from distprof import __version__
from distprof.errors import DistprofError
from distprof.launch.agents.run_answers import RunAnswers

INSTRUCTIONS = """\
Tools about one run of distprof, a profiler of distributed PyTorch jobs. Begin with `findings`: it says which rank, \
phase, module and line make the job slow, and since which step. `watch_state` covers every step of the job, also while \
it runs; `steps`, `comms` and `ops` cover the few steps that were recorded in detail at its start, or, with window=N, \
later. Answers are JSON of at most 8 KB: `left_out` says what is missing and how to ask for it. Times are nanoseconds \
(`_ns`), steps and ranks count from 0, and a key that is absent is unknown. Nothing here changes the job."""
Window = Annotated[int | None, Field(ge=1, description=(
    "Read the N-th recording that was made later in the job (`windows` of findings lists them) instead of the one at "
    "its start."))]
Offset = Annotated[int, Field(ge=0, description="Skip this many rows: `left_out.rows.next_offset` of the previous "
                                                "answer.")]
Rank = Annotated[int | None, Field(ge=0, description="Only this rank.")]
Step = Annotated[int | None, Field(ge=0, description="Only this step.")]
BY = Field(description="Group calls by any of: op, type, category, module, class, shape, dtype, phase, rank, stream, "
                       "step, stack. Default: op.")
Asked = ParamSpec("Asked")


def server(run: Path) -> MCPServer[Any]:
    """Returns the server of a run."""
    answers = RunAnswers(run)
    made = MCPServer[Any](name="distprof", title=f"distprof: {run}", version=__version__, instructions=INSTRUCTIONS,
                          log_level="ERROR")
    for tool in (_findings(answers), _steps(answers), _comms(answers), _ops(answers), _watch_state(answers)):
        made.add_tool(tool, structured_output=False, annotations=ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False))
    return made


def _told(function: Callable[Asked, str], *args: Asked.args, **kwargs: Asked.kwargs) -> str:
    """Returns the answer of `function`; turns every error into a ToolError that an agent can read."""
    try:
        return function(*args, **kwargs)
    except DistprofError as error:
        raise ToolError(str(error)) from error
    except OSError as error:
        raise ToolError(f"cannot read the run: {error.strerror or error}") from error
    except BaseException as error:  # a panic of polars is not an Exception
        raise ToolError(f"unexpected: {type(error).__name__}: {error}  hint: ask another tool; please report it"
                        ) from error


def _findings(answers: RunAnswers) -> Callable[..., str]:
    def findings(window: Window = None, offset: Offset = 0) -> str:
        """What makes the job slow, worst first. Ask this first.

        `findings` is a list. Each has `text` (a sentence), `severity` (bad, warn, note, good), `source` ("whole job":
        found in the whole job; "recorded steps": measured in the steps recorded in detail), and, where
        known: `kind` (slow_rank, slow_host, slow_link, slow_group, regression: all ranks are slower than before,
        intermittent, data_stall, memory_growth, pauses, stopped, hang), `ranks` (who is to blame; absent: all),
        `hosts`, `phase` (data, forward, backward, optimizer, host, communication), `module`, `line` (file.py:33),
        `since_step`, `until_step` (absent: it goes on), `why` (what the machine said then), `command` (shows more),
        `details` (evidence: `per_step_ns` or `gain_ns` is what it costs per step, `cost_ns` what it has cost the job,
        `p` or `p_value` the probability of chance, `cause`). `windows` are later recordings, absent if there are none:
        for a finding without `module`, ask again with the last `window` and look for the same `ranks`.
        """
        return _told(answers.findings, window=window, offset=offset)

    return findings


def _steps(answers: RunAnswers) -> Callable[..., str]:
    def steps(rank: Rank = None, each_step: Annotated[bool, Field(
            description="Return each recorded step of each rank instead of the mean step.")] = False,
            window: Window = None, offset: Offset = 0) -> str:
        """How long a step takes and what each rank does in it, from the steps recorded in detail.

        `step` has the step time (`time_ns`; 90 % of steps lie between `low_ns` and `high_ns`) and its phases;
        `steps.change` is the step from which steps took longer; `passes` says how much recording slows steps down.
        `mean_step_of_ranks` (or `steps_of_ranks`) has a row per rank: `compute_ns`, `waiting_ns` (for other ranks),
        `moving_ns` (data on the network), `data_ns`, `optimizer_ns`, `host_ns`. The rank that waits least is the one
        that the others wait for.
        """
        return _told(answers.steps, rank=rank, each=each_step, window=window, offset=offset)

    return steps


def _comms(answers: RunAnswers) -> Callable[..., str]:
    def comms(op: Annotated[str | None, Field(description="Only this op, like all_reduce.")] = None,
              group: Annotated[str | None, Field(description="Only this process group.")] = None, step: Step = None,
              collective: Annotated[int | None, Field(ge=0, description=(
                  "Show what each rank did in this collective: the number `collective` of a row."))] = None,
              window: Window = None, offset: Offset = 0) -> str:
        """Communication in the steps recorded in detail: who arrives late, how long others wait, how fast data move.

        `culprits` are ranks that delay others, with `gain_ns` (by which a step would be shorter) and `causes`;
        `kinds` are calls by op and group (`wait_ns`, `transfer_ns`), `bandwidths` bytes per second, `stuck` calls
        that never ended. `collectives` lists calls, the one with the most different arrivals first
        (`arrival_spread_ns`, `late_rank`).
        """
        return _told(answers.comms, op=op, group=group, step=step, collective=collective, window=window, offset=offset)

    return comms


def _ops(answers: RunAnswers) -> Callable[..., str]:
    def ops(by: Annotated[list[str] | None, BY] = None, sort: Annotated[str, Field(
            description="Column, largest first: self, self_host_ns, self_device_ns, calls, flops, bytes.")] = "self",
            op: Annotated[str | None, Field(description="Regex of names of operators.")] = None,
            module: Annotated[str | None, Field(description="Glob of modules, like 'layers.*.attention'.")] = None,
            rank: Rank = None, step: Step = None, phase: Annotated[str | None, Field(
                description="forward, backward, recompute, optimizer, evaluation or data.")] = None,
            window: Window = None, offset: Offset = 0) -> str:
        """Operators in the steps recorded in detail: time on host and device, FLOPs and bytes, summed over ranks.

        `ops` has a row per group: `calls`, `self_host_ns`, `self_device_ns` (sums without callees), `mean_ns`,
        `flops`, `bytes`, `slowest_rank` with `slowest_ratio` to the median rank (with `slowest_p_value`, the
        probability of chance), and `bound` (what limits it).
        """
        filters = {"op": op, "module": module, "ranks": _one(rank), "steps": _one(step), "phases": _one(phase)}
        return _told(answers.ops, by=by or ["op"], sort=sort, filters=filters, window=window, offset=offset)

    return ops


def _watch_state(answers: RunAnswers) -> Callable[..., str]:
    def watch_state(rank: Rank = None, offset: Offset = 0) -> str:
        """The whole job by now, while it runs or after: all steps, every rank, what was noticed.

        `num_steps` that all ranks ended, `step_ns` (median step), `running`, `findings` as sentences. `ranks` lists
        ranks with findings first, then those that wait least: `step` (the last that ended), `step_ns` and the phases
        (means of the last 10 s), `waiting_ratio` (share of a step in which it waits for others or for data to move),
        memory.
        """
        return _told(answers.watch_state, rank=rank, offset=offset)

    return watch_state


def _one(value: object) -> tuple[Any, ...]:
    return () if value is None else (value,)
