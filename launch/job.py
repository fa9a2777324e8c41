"""The job that `distprof run` starts: makes the run directory, runs torchrun with the worker, notes how it ended."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, RUN_JSON
from distprof.contract.rank_json import RunJson
from distprof.errors import Ended, OutputError, UsageError
from distprof.launch.deepspeed_config import FlopsProfilerSection, read_section
from distprof.launch.job_arguments import axis_sizes, is_one_node, parse, sets_rendezvous, world_size
from distprof.process.topology import from_sizes
from distprof.recording.plan import StepPlan
from distprof.recording.run_directory import make_run_directory, new_run_id, run_id_in, this_launch
from distprof.terminal import quoted, say

ReportWriter = Callable[[Path, FlopsProfilerSection], None]
"""Prints or writes the report of a run directory that the flops_profiler section asks for."""


def run_job(argv: Sequence[str], write_report: ReportWriter | None = None) -> int:
    """Runs and records a job.

    Args:
        argv: Arguments after `distprof run`.
        write_report: Called at the end if --config asks for a report.

    Returns:
        The exit code of the first rank that failed (128 + n for signal n), else 0.

    Raises:
        UsageError: An argument is wrong, or there is no such script.
        OutputError: The run directory cannot be created.
    """
    args = parse(argv)
    section = read_section(args.config) if args.config is not None else FlopsProfilerSection()
    plan = StepPlan.parse(args.steps) if args.steps is not None else section.plan()
    if args.config is not None and not section.enabled:
        say(f"flops_profiler is not enabled in {args.config}: its settings are ignored")
    sizes, ranks = axis_sizes(args), world_size(args)
    if sizes and ranks is not None:
        from_sizes(sizes, rank=0, world_size=ranks)  # checks that they divide the ranks
    directory = args.out or _default_directory(args)
    run_id = _run_id(args, directory)
    known = plan if ranks is None else plan.for_ranks(ranks)  # the ranks see for themselves: a script may start more
    started = this_launch(run_id=run_id, plan=str(known), world_size=ranks, sizes=sizes)
    is_first_node = is_one_node(args) or run_id_in(directory / RUN_JSON) != run_id
    if is_first_node:
        make_run_directory(directory, started, force=args.force)
    say(f"recording steps {known} to {directory}")
    _set_environment(directory, plan, run_id, sizes, debug=args.debug)
    code, failed = _launch(_with_worker(args))
    _finish(directory, replace(started, exit_code=code, **failed))
    if section.enabled and write_report is not None and is_first_node:
        _report(write_report, directory, section)
    return code


def _report(write_report: ReportWriter, directory: Path, section: FlopsProfilerSection) -> None:
    try:
        write_report(directory, section)
    except Ended:
        say("no report: nobody reads standard output")
    except Exception as error:  # noqa: BLE001 (the exit code stays that of the script)
        say(f"no report: {error}")


def _default_directory(args: argparse.Namespace) -> Path:
    """Creates a directory under runs/; jobs that start in the same second get one each."""
    if not is_one_node(args):
        raise UsageError("expected --out for a job of several nodes, found none",
                         hint="--out DIR, the same shared directory on every node")
    name = f"{Path(args.training_script).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        Path("runs").mkdir(exist_ok=True)
        for directory in (Path("runs") / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100)))):
            with suppress(FileExistsError):
                directory.mkdir()
                return directory
    except OSError as error:
        raise OutputError(f"cannot make a directory under runs/: {error.strerror}", hint="choose --out") from error
    raise OutputError(f"expected a free name like runs/{name}, found 99 in use", hint="choose --out")


def _run_id(args: argparse.Namespace, directory: Path) -> str:
    """Random on one node; on several nodes a hash of the arguments that all launchers share."""
    if is_one_node(args):
        return new_run_id()
    shared = (args.rdzv_id, args.rdzv_endpoint, args.master_addr, args.master_port, directory.name)
    return hashlib.sha256("|".join(map(str, shared)).encode()).hexdigest()[:12]


def _set_environment(directory: Path, plan: StepPlan, run_id: str, sizes: Mapping[str, int], *,
                     debug: bool) -> None:
    os.environ |= {"DISTPROF_OUT": os.fspath(directory.resolve()), "DISTPROF_STEPS": str(plan),
                   "DISTPROF_RUN_ID": run_id}
    os.environ |= {f"DISTPROF_{axis.upper()}": str(size) for axis, size in sizes.items()}
    if debug:
        os.environ["DISTPROF_DEBUG"] = "1"


def _with_worker(args: argparse.Namespace) -> argparse.Namespace:
    """The same job with the worker in front of the script."""
    script = ["-m", args.training_script] if args.module else [args.training_script]
    args.training_script_args = [*script, *args.training_script_args]
    args.training_script, args.module, args.run_path = "distprof.launch.worker", True, False
    if is_one_node(args) and not sets_rendezvous(args):
        args.standalone = True  # a free port, so that two jobs on one machine do not meet
    return args


def _launch(args: argparse.Namespace) -> tuple[int, dict[str, int]]:
    """Runs the job; returns its exit code, and fields of run.json on the rank that failed first."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import run as torchrun

    try:
        torchrun(args)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = int(failure.exitcode)
        say(f"rank {rank} failed first: {f'exit code {code}' if code >= 0 else f'signal {-code}'}")
        return code if code >= 0 else 128 - code, {"failed_rank": int(rank), "failed_with": code}
    except SignalException as error:
        return 128 + int(error.sigval), {}
    except KeyboardInterrupt:
        return 130, {}
    except Exception as error:  # noqa: BLE001 (no port, no temporary folder, ...: without us a traceback and exit code 1)
        say(f"torchrun could not run the job: {type(error).__name__}: {error}  hint: `--debug` shows where")
        if os.environ.get("DISTPROF_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        return 1, {}
    return 0, {}


def _finish(directory: Path, ended: RunJson) -> None:
    """Writes how the job ended into run.json; prints what was recorded and the next command."""
    closed = list(directory.glob(f"rank?????/{RANK_JSON}"))
    cut = list(directory.glob(f"rank?????{PARTIAL_SUFFIX}/{RANK_JSON}"))
    expected = ended.world_size
    try:
        rank_json.write(directory / RUN_JSON, replace(ended, end_ns=time.time_ns()))
    except OSError as error:  # the exit code stays that of the script
        say(f"cannot write {directory / RUN_JSON}: {error.strerror}")
    of = f" of {expected}" if expected is not None else ""
    unfinished = f", {len(cut)} unfinished" if cut else ""
    done = f"{len(closed)}{of} ranks recorded{unfinished}."
    if closed or cut:
        say(f"{done} Next:", f"    distprof merge {quoted(directory)}")
    else:
        say(done)
