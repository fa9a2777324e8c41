"""The job that `distprof run` starts: creates the run directory, runs torchrun with the worker, records the end."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distprof.contract import rank_json
from distprof.contract.passes import EXECUTION
from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import RankJson, first_failure, is_victim
from distprof.errors import DataError, Ended, OutputError, UsageError
from distprof.launch import worker
from distprof.launch.deepspeed_config import REPORTED, FlopsProfilerSection, logger_notes, read_section
from distprof.launch.hosts.hosts_process import HostsProcess
from distprof.launch.hosts.hosts_process import asked as asked_hosts
from distprof.launch.job_arguments import (
    asked_steps,
    axis_sizes,
    is_one_node,
    may_restart,
    parse,
    sets_rendezvous,
    step_every,
    world_size,
)
from distprof.launch.job_end import AfterMerge, finish, merge_uploaded
from distprof.launch.job_progress import progress_shown
from distprof.launch.upload.job_upload import JobUpload, check_target, mark_uploaded
from distprof.launch.watching.watch_process import WatchProcess, wanted
from distprof.needs import switch_on_flight_recorder
from distprof.process.topology import from_sizes
from distprof.recording.chosen_ranks import VARIABLE as RANKS
from distprof.recording.chosen_ranks import ChosenRanks
from distprof.recording.job.claim import join_or_make
from distprof.recording.plan import VARIABLE as TOPICS
from distprof.recording.plan import StepPlan, asked_plan
from distprof.recording.run_directory import NO_ARGV, WATCH, make_run_directory, new_run_id, this_launch
from distprof.recording.steps.pattern import VARIABLE
from distprof.recording.watch.run_log import VARIABLE as LOG_TO
from distprof.sizes import RANK_VARIABLE, WATCH_VARIABLE, num_bytes, rank_bytes, watch_bytes
from distprof.storage.places import remote
from distprof.terminal import relay, say

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from distprof.storage.remote_path import RemotePath

ReportWriter = Callable[[Path, FlopsProfilerSection], None]
"""Prints or writes the report of a run directory that the flops_profiler section requests."""


def run_job(argv: Sequence[str], write_report: ReportWriter | None = None,
            after_merge: AfterMerge | None = None) -> int:
    """Runs and records a job.

    Args:
        argv: Arguments after `distprof run`.
        write_report: Called at the end if --config requests a report.
        after_merge: Called after the merge, instead of printing the answer and the next commands.

    Returns:
        The exit code of the first rank that failed (128 + n for signal n), else 0.

    Raises:
        UsageError: An argument is wrong, or the script does not exist.
        OutputError: The run directory cannot be created.
    """
    args = parse(argv)
    section = read_section(args.config) if args.config is not None else FlopsProfilerSection()
    plan = asked_plan(asked_steps(args), args.topics, default=section.plan(), also=REPORTED if section.enabled else ())
    plan = plan.also(EXECUTION) if args.execution_trace else plan
    if args.config is not None and not section.enabled:
        say(f"flops_profiler is not enabled in {args.config}: its settings are ignored")
    for note in logger_notes(args.config) if args.config is not None else ():
        say(note)
    sizes, ranks = axis_sizes(args), world_size(args)
    if sizes and ranks is not None:
        from_sizes(sizes, rank=0, world_size=ranks)  # checks that the sizes divide the number of ranks
    every = step_every(args)
    ranks_chosen = ChosenRanks.parse(args.ranks) if args.ranks is not None else ChosenRanks.requested(os.environ)
    is_watched = (args.watch or os.environ.get(WATCH)) != "off"
    watched = wanted(metrics=args.metrics, on_finding=args.on_finding, otlp=args.otlp, log_to=args.log_to,
                     window_every=args.window_every, is_on=is_watched)
    hosts = asked_hosts(args.hosts, args.hosts_cert, args.hosts_key)
    if args.max_rank_size is not None:
        os.environ[RANK_VARIABLE] = str(num_bytes(args.max_rank_size, "--max-rank-size"))
    if args.no_argv:
        os.environ[NO_ARGV] = "1"
    if args.watch is not None:
        os.environ[WATCH] = args.watch
    if args.watch_bytes is not None:
        os.environ[WATCH_VARIABLE] = str(num_bytes(args.watch_bytes, "--watch-bytes"))
    os.environ[LOG_TO] = args.log_to or ""
    rank_bytes(os.environ)  # rejects values here that ranks would reject
    watch_bytes(os.environ)
    target = remote(args.out) if args.out is not None else None
    if target is not None:
        check_target(target, force=args.force)
    directory = _spool(args, target) if target is not None else args.out or _default_directory(args)
    known = plan if ranks is None else plan.for_ranks(ranks)  # ranks decide themselves: a script may start more ranks
    started = this_launch(run_id=new_run_id(), plan=str(known), world_size=ranks, sizes=sizes, key=_key(args))
    if is_one_node(args):
        run_id = started.run_id
        make_run_directory(directory, started, force=args.force)
    else:
        run_id = join_or_make(directory, started, elastic=ranks is None, force=args.force)
    fully = f", ranks {ranks_chosen.text} fully" if ranks_chosen is not None else ""
    without = "no passes, only watching all steps," if is_watched else "no steps (neither passes nor the watch are on)"
    say(f"recording {without if plan.is_off else f'steps {known}'} to {directory}{fully}")
    if ranks_chosen is not None:
        os.environ[RANKS] = ranks_chosen.text
    _set_environment(directory, plan, run_id, sizes, every, debug=args.debug, force=args.force)
    if may_restart(args):
        # torch 2.13 reuses the store for the next attempt, whose ranks would find addresses of dead ranks there
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # rank folders are moved when an attempt ends, so with restarts nothing is uploaded before the end of the job
    sending = None if target is None else JobUpload(directory, target, meanwhile=not may_restart(args))
    watching = None if watched is None else WatchProcess(watched.of(directory, run_id, is_alone=is_one_node(args)))
    copying = None if hosts is None or is_one_node(args) else HostsProcess(
        msgspec.structs.replace(hosts, directory=os.fspath(directory.resolve()), uploaded=target is not None))
    with (nullcontext() if args.no_progress else progress_shown(directory, known),
          nullcontext() if copying is None else copying.meeting()):
        code, failed = _launch(_with_worker(args), directory)
    gathered = None if copying is None else copying.finish(code, failed)
    lines = watching.finish() if watching is not None else []
    finish(directory, started, code, failed, merges=not args.no_merge, is_alone=is_one_node(args),
           after_merge=after_merge, uploaded_to=None if target is None else str(target), gathered=gathered,
           job_lines=lines)
    if sending is not None and target is not None and sending.finish() and not is_one_node(args):
        mark_uploaded(target, directory)
        if not (args.no_merge or code or after_merge is not None):
            merge_uploaded(target, lines)
    if section.enabled and write_report is not None and run_id == started.run_id:
        _report(write_report, directory, section)
    return code


def _report(write_report: ReportWriter, directory: Path, section: FlopsProfilerSection) -> None:
    try:
        write_report(directory, section)
    except Ended:
        say("no report: standard output is closed")
    except Exception as error:  # noqa: BLE001 (the exit code stays that of the script)
        say(f"no report: {error}")


def _default_directory(args: argparse.Namespace) -> Path:
    """Creates a directory under runs/; jobs that start in the same second get different ones."""
    if not is_one_node(args):
        raise UsageError("a job on several nodes needs --out",
                         hint="use --out DIR on every node: a shared directory, or a separate one on each node")
    name = f"{Path(args.training_script).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        Path("runs").mkdir(exist_ok=True)
        for directory in (Path("runs") / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100)))):
            with suppress(FileExistsError):
                directory.mkdir()
                return directory
    except OSError as error:
        raise OutputError(f"cannot make a directory under runs/: {error.strerror}", hint="choose --out") from error
    raise OutputError(f"99 directories like runs/{name} exist already", hint="choose --out")


def _spool(args: argparse.Namespace, target: RemotePath) -> Path:
    """Returns the local directory in which ranks record before the upload; with several nodes, each has its own."""
    return _default_directory(args) if is_one_node(args) else Path("runs") / target.name


def _key(args: argparse.Namespace) -> str:
    """Returns a hash of the arguments that are equal on all nodes; '' for one node."""
    if is_one_node(args):
        return ""
    shared = (args.rdzv_id, args.rdzv_endpoint, args.master_addr, args.master_port)
    return hashlib.sha256("|".join(map(str, shared)).encode()).hexdigest()[:12]


def _set_environment(directory: Path, plan: StepPlan, run_id: str, sizes: Mapping[str, int], every: str | None, *,
                     debug: bool, force: bool) -> None:
    os.environ |= {"DISTPROF_OUT": os.fspath(directory.resolve()), "DISTPROF_STEPS": str(plan),
                   "DISTPROF_RUN_ID": run_id}
    os.environ |= {f"DISTPROF_{axis.upper()}": str(size) for axis, size in sizes.items()}
    os.environ.pop(TOPICS, None)  # belongs to another recording; the plan determines what this one records
    if every is not None:
        os.environ[VARIABLE] = every
    os.environ |= {name: "1" for name, wanted in (("DISTPROF_DEBUG", debug), ("DISTPROF_FORCE", force)) if wanted}
    switch_on_flight_recorder()


def _with_worker(args: argparse.Namespace) -> argparse.Namespace:
    """Returns the arguments of the same job with the worker before the script."""
    script = ["-m", args.training_script] if args.module else [args.training_script]
    args.training_script_args = [*script, *args.training_script_args]
    args.training_script, args.module, args.run_path = worker.__file__, False, False
    if is_one_node(args) and not sets_rendezvous(args):
        args.standalone = True  # uses a free port, so that two jobs on one machine do not join each other
    return args


def _launch(args: argparse.Namespace, directory: Path) -> tuple[int, dict[str, int]]:
    """Runs the job; returns its exit code, and fields of run.json about the rank that failed first."""
    script = args.training_script_args[args.training_script_args[0] == "-m"]
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import run as torchrun

    # torchrun gives each rank one thread by default, and prints a warning of five lines about it
    logging.getLogger("torch.distributed.run").addFilter(lambda record: "OMP_NUM_THREADS" not in str(record.msg))
    try:
        torchrun(args)
    except ChildFailedError as error:
        # prints what torchrun would print, but with the name of the script instead of the worker
        relay(f"{ChildFailedError.__module__}.{ChildFailedError.__name__}: "
              f"{ChildFailedError(Path(script).name, error.failures)}")
        rank, why = _first(error, directory)
        failure = error.failures[rank]
        code = int(failure.exitcode)
        say(f"rank {rank} failed first: {f'exit code {code}' if code >= 0 else f'signal {-code}'}"
            f"{f' ({why})' if why else ''}")
        return code if code >= 0 else 128 - code, {
            "failed_rank": int(rank), "failed_with": code, "failed_ns": int(failure.timestamp) * 1_000_000_000}
    except SignalException as error:
        return 128 + int(error.sigval), {}
    except KeyboardInterrupt:
        return 130, {}
    except Exception as error:  # noqa: BLE001 (no port, no temporary folder, ...: torchrun would print a traceback)
        say(f"torchrun could not run the job: {type(error).__name__}: {error}  hint: `--debug` shows the traceback")
        if os.environ.get("DISTPROF_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        return 1, {}
    return 0, {}


def _first(error: ChildFailedError, directory: Path) -> tuple[int, str | None]:
    """Returns the rank of this node that failed first, and its exception if known.

    torchrun names the rank that it saw end first, which may only have lost its connection to the one that failed.
    """
    seen = int(error.get_first_failure()[0])
    ranks = [rank for rank in _recorded(directory) if rank.rank in error.failures]
    first = first_failure(ranks)
    if first is None and is_victim(seen, ranks):
        # a rank was killed before it could record an exception, e.g. by the OOM killer; torchrun ends others by SIGTERM
        others = [rank for rank, failure in error.failures.items()
                  if failure.exitcode != -signal.SIGTERM and not is_victim(rank, ranks)]
        return min(others, key=lambda rank: error.failures[rank].timestamp, default=seen), None
    if first is not None and (seen == first.rank or is_victim(seen, ranks)):
        return first.rank, first.failure.what if first.failure is not None else None
    return seen, next((rank.failure.what for rank in ranks if rank.rank == seen and rank.failure is not None), None)


def _recorded(directory: Path) -> list[RankJson]:
    found = []
    for path in directory.glob(f"rank*/{RANK_JSON}"):
        with suppress(DataError):  # the merge will report it
            found.append(rank_json.read(path, RankJson))
    return found
