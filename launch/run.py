"""`distprof run`: torchrun's own arguments and a script come in, a recorded job and its exit code go out."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from distprof.contract.mesh import MODEL_PARALLEL
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, RUN_JSON
from distprof.errors import DistprofError, OutputError, UsageError
from distprof.files import write_json
from distprof.launch.deepspeed_config import FlopsProfilerSection, read_section
from distprof.process.identity import versions
from distprof.recording.plan import StepPlan
from distprof.recording.run_directory import describe, new_run_id, open_run, run_id_in

Report = Callable[[Path, FlopsProfilerSection], None]
"""What is done with a run directory when the job has ended and a config file asks for a report."""
RENDEZVOUS = ("standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "node_rank")
"""torchrun's arguments that say where ranks meet."""


def parser() -> argparse.ArgumentParser:
    """torchrun's parser with our arguments in a group of their own."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.prog = "distprof run"
    parser.usage = "distprof run [--out DIR] [--steps PLAN] [torchrun's flags] [-m] script [script's flags]"
    parser.description = "Runs a script like torchrun and records every rank. All flags of torchrun work."
    group = parser.add_argument_group("recording")
    group.add_argument("--out", type=Path, default=None, metavar="DIR",
                       help="run directory (default: runs/<script>-<time>)")
    group.add_argument("--steps", default=None, metavar="PLAN",
                       help=f"steps of each pass (default: {StepPlan()})")
    group.add_argument("--config", type=Path, default=None, metavar="FILE",
                       help="DeepSpeed config: its flops_profiler section says from which step on to record and how "
                            "to report")
    group.add_argument("--force", action="store_true", help="replace the run in --out")
    for axis in MODEL_PARALLEL:
        group.add_argument(f"--{axis}", type=int, default=None, metavar="N",
                           help=f"size of the {axis} axis, where the script has no DeviceMesh that says it")
    group.add_argument("--debug", action="store_true", help="show tracebacks of distprof's own failures")
    parser.error = _refuse  # type: ignore[method-assign]  # argparse would print the usage as well
    return parser


def _refuse(message: str) -> NoReturn:
    raise UsageError(message, hint="distprof run --help lists the flags")


def run(argv: Sequence[str], report: Report | None = None) -> int:
    """Runs the job.

    Args:
        argv: Arguments after `distprof run`.
        report: Called at the end with the run directory, where --config asks for a report.

    Returns:
        The exit code of the first rank that failed (128 + n for signal n), else 0.

    Raises:
        UsageError: The script is not there or the arguments contradict each other.
        OutputError: The run directory cannot be made.
    """
    args = parser().parse_args(list(argv))
    _check_script(args)
    section = read_section(args.config) if args.config is not None else FlopsProfilerSection()
    plan = StepPlan.parse(args.steps) if args.steps is not None else section.plan()
    if args.config is not None and not section.enabled:
        _say(f"flops_profiler is not enabled in {args.config}: nothing of it is used")
    sizes = _sizes(args)
    world_size = _world_size(args)
    _check_sizes(sizes, world_size)
    directory = args.out or _default_directory(args)
    run_id = _run_id(args, directory)
    description = describe(run_id=run_id, argv=sys.argv, plan=str(plan), world_size=world_size,
                           start_ns=time.time_ns(), versions=versions(), sizes=sizes, host=socket.gethostname())
    is_first_node = not _shared_with_first_node(args, directory, run_id)
    if is_first_node:
        open_run(directory, description, force=args.force)
    _say(f"recording steps {plan} to {directory}")
    _set_environment(directory, plan, run_id, sizes, debug=args.debug)
    code = _launch(_with_worker(args))
    _finish(directory, description, code)
    if section.enabled and report is not None and is_first_node:
        _report(report, directory, section)
    return code


def _report(report: Report, directory: Path, section: FlopsProfilerSection) -> None:
    try:
        report(directory, section)
    except DistprofError as error:  # the script's exit code is worth more
        _say(f"no report: {error}")


def _check_script(args: argparse.Namespace) -> None:
    if args.no_python:
        raise UsageError("expected a Python script, found --no-python",
                         hint="put `with distprof.record(...)` into the program instead")
    if not args.module and not Path(args.training_script).is_file():
        raise UsageError(f"expected a script, found no file {args.training_script}",
                         hint="-m runs a module" if "/" not in args.training_script else None)


def _sizes(args: argparse.Namespace) -> dict[str, int]:
    from distprof.process.topology import requested

    sizes = requested(os.environ)
    sizes |= {axis: getattr(args, axis) for axis in MODEL_PARALLEL if getattr(args, axis) is not None}
    wrong = [axis for axis, size in sizes.items() if size < 1]
    if wrong:
        raise UsageError(f"expected a size of 1 or more, found --{wrong[0]} {sizes[wrong[0]]}")
    return sizes


def _world_size(args: argparse.Namespace) -> int | None:
    """Ranks of the job; None where torchrun decides at run time."""
    from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

    try:
        least, most = parse_min_max_nnodes(args.nnodes)
        return most * determine_local_world_size(args.nproc_per_node) if least == most else None
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"expected numbers of nodes and ranks that torchrun takes, found --nnodes {args.nnodes} "
                         f"--nproc-per-node {args.nproc_per_node}: {error}",
                         hint="--nproc-per-node 4") from error


def _check_sizes(sizes: Mapping[str, int], world_size: int | None) -> None:
    from distprof.process.topology import from_sizes

    if sizes and world_size is not None:
        from_sizes(sizes, rank=0, world_size=world_size)


def _default_directory(args: argparse.Namespace) -> Path:
    """A new directory under runs/; jobs that start in the same second get one each."""
    if not _one_node(args):
        raise UsageError("expected --out in a job of several nodes: all of them need the same directory")
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


def _one_node(args: argparse.Namespace) -> bool:
    return args.nnodes in ("1", "1:1")


def _run_id(args: argparse.Namespace, directory: Path) -> str:
    """Random on one node; on several, made of what all launchers were told alike."""
    if _one_node(args):
        return new_run_id()
    told = (args.rdzv_id, args.rdzv_endpoint, args.master_addr, args.master_port, directory.name)
    return hashlib.sha256("|".join(map(str, told)).encode()).hexdigest()[:12]


def _shared_with_first_node(args: argparse.Namespace, directory: Path, run_id: str) -> bool:
    return not _one_node(args) and run_id_in(directory / RUN_JSON) == run_id


def _set_environment(directory: Path, plan: StepPlan, run_id: str, sizes: Mapping[str, int], *,
                     debug: bool) -> None:
    os.environ |= {"DISTPROF_OUT": os.fspath(directory.resolve()), "DISTPROF_STEPS": str(plan),
                   "DISTPROF_RUN_ID": run_id}
    os.environ |= {f"DISTPROF_{axis.upper()}": str(size) for axis, size in sizes.items()}
    if debug:
        os.environ["DISTPROF_DEBUG"] = "1"


def _with_worker(args: argparse.Namespace) -> argparse.Namespace:
    """The same job with our worker in front of the script."""
    script = ["-m", args.training_script] if args.module else [args.training_script]
    args.training_script_args = [*script, *args.training_script_args]
    args.training_script, args.module, args.run_path = "distprof.launch.worker", True, False
    if _one_node(args) and not any(_given(args, name) for name in RENDEZVOUS):
        args.standalone = True  # a free port: two jobs on one machine do not meet by accident
    return args


def _given(args: argparse.Namespace, name: str) -> bool:
    # torchrun's parser takes PET_ variables for defaults
    return f"PET_{name.upper()}" in os.environ or bool(getattr(args, name) != parser().get_default(name))


def _launch(args: argparse.Namespace) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import run as torchrun

    try:
        torchrun(args)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _say(f"rank {rank} failed first: {_how(failure.exitcode)}")
        return _exit_code(failure.exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 130
    return 0


def _how(exitcode: int) -> str:
    return f"exit code {exitcode}" if exitcode >= 0 else f"signal {-exitcode}"


def _exit_code(exitcode: int) -> int:
    return exitcode if exitcode >= 0 else 128 - exitcode


def _finish(directory: Path, description: Mapping[str, Any], code: int) -> None:
    """Notes how the job ended, says what is there and what to type next."""
    closed = list(directory.glob(f"rank?????/{RANK_JSON}"))
    cut = list(directory.glob(f"rank?????{PARTIAL_SUFFIX}/{RANK_JSON}"))
    expected = description["world_size"]
    try:
        write_json(directory / RUN_JSON, {"format": 1, **description, "end_ns": time.time_ns(), "exit_code": code})
    except OSError as error:  # the script's exit code is worth more than this file
        _say(f"cannot write {directory / RUN_JSON}: {error.strerror}")
    of = f" of {expected}" if expected is not None else ""
    unfinished = f", {len(cut)} unfinished" if cut else ""
    following = f" Next:\n    distprof merge {shlex.quote(os.fspath(directory))}" if closed or cut else ""
    _say(f"{len(closed)}{of} ranks recorded{unfinished}.{following}")


def _say(message: str) -> None:
    sys.stderr.write(f"distprof: {message}\n")
    sys.stderr.flush()
