"""Arguments of `distprof run`: all flags of torchrun and flags for recording."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from distprof.contract.mesh import GIVEN_AXES, MESH_AXES
from distprof.contract.passes import TOPIC_NAMES
from distprof.contract.watch_state import OPEN_RUNS
from distprof.errors import UsageError
from distprof.process.topology import requested
from distprof.recording.plan import OFF, default_plan
from distprof.recording.steps.pattern import StepEvery
from distprof.storage.places import place

RENDEZVOUS = ("standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "node_rank")
"""Flags of torchrun that configure the rendezvous."""
OF_OTHERS = ("DISTPROF_", "PET_")
"""Prefixes of environment variables that configure a recording, and of defaults for torchrun's flags."""
KEPT = ("DISTPROF_DEBUG", "DISTPROF_PLAIN_ENGINE")
ON_THIS_MACHINE = ("--no-progress", "--standalone", "--local-addr=127.0.0.1")
"""Flags of jobs that are part of distprof. They avoid looking up the name of this machine, which is slow or fails
without a network."""


def forgotten(environ: Mapping[str, str]) -> list[str]:
    """Returns names of environment variables of other jobs, which jobs that are part of distprof must not see."""
    return [name for name in environ if name.startswith(OF_OTHERS) and name not in KEPT]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses and checks the arguments after `distprof run`.

    Raises:
        UsageError: An argument is wrong, or the script does not exist.
    """
    args = job_parser().parse_args(list(argv))
    if args.no_python:
        raise UsageError("--no-python is not supported: distprof run records Python scripts",
                         hint="use `with distprof.record(...)` in the program instead")
    if not args.module and not Path(args.training_script).is_file():
        raise UsageError(f"no script {args.training_script}",
                         hint="use -m to run a module" if "/" not in args.training_script else None)
    return args


def job_parser() -> argparse.ArgumentParser:
    """Returns the parser of torchrun with an additional group of flags for recording."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.prog = "distprof run"
    parser.usage = ("distprof run [--out DIR] [--steps PLAN] [--topics TOPICS] [torchrun flags] [-m] script "
                    "[script flags]")
    parser.description = (
        "Start a script like torchrun does and record every rank. All torchrun flags except --no-python work. "
        "A script that starts its ranks itself (mp.spawn, multiprocessing) needs no launcher: "
        "`DISTPROF_OUT=runs/mine python script.py` records them.")
    add_recording_flags(parser.add_argument_group("recording"))
    parser.error = _refuse  # type: ignore[method-assign]  # argparse would print the usage as well
    return parser


def add_recording_flags(group: argparse._ActionsContainer) -> None:
    """Adds the flags that torchrun does not have."""
    group.add_argument("--out", type=place, default=None, metavar="DIR",
                       help="run directory (default: runs/<script>-<time>); with a URL like s3://bucket/runs/a, ranks "
                            "are recorded to the default directory and uploaded when complete")
    group.add_argument("--steps", default=None, metavar="PLAN",
                       help=f"number of steps per pass (default: {default_plan()}); sync=2 records the lines that "
                            "block a rank, for distprof waits; memory=1 records allocations, for distprof memory, "
                            "instead of the trace pass unless that is named too")
    group.add_argument("--execution-trace", action="store_true",
                       help="also record an execution trace in one extra step, for distprof export: what ran, its "
                            "tensors and its dependencies; the same as execution=1 in --steps")
    group.add_argument("--topics", default="", metavar="TOPICS",
                       help=f"record only these topics: {', '.join(TOPIC_NAMES)}, or all, separated by commas or |; "
                            "--steps can then set the number of steps of their passes or add passes")
    group.add_argument("--ranks", default=None, metavar="RANKS",
                       help="ranks to record fully, separated by commas: 0-7, leaders (one rank per part of the "
                            "model, or per host if there is no device mesh), sample:32 (that many, evenly spread), "
                            "all; the others record the same steps lightly: steps and their parts, upper-level "
                            "modules, arrivals of collectives (default: all)")
    group.add_argument("--max-rank-size", default=None, metavar="SIZE",
                       help="maximum size of a rank's folder, like 500MB; the shortest events of its timeline are "
                            "dropped to fit, and distprof says how many (default: 2GB)")
    group.add_argument("--step-every", default=None, metavar="CLASS|N",
                       help="what ends a step: a step of an optimizer of this class, or every N optimizer steps "
                            "(default: an iteration of the training loop, found from the pattern of its optimizer "
                            "steps)")
    group.add_argument("--config", type=Path, default=None, metavar="FILE",
                       help="DeepSpeed config file; its flops_profiler section sets the first recorded step and the "
                            "report")
    group.add_argument("--no-merge", action="store_true",
                       help="do not merge the ranks at the end (by default, a job ends with a merge and a ten-line "
                            "summary)")
    group.add_argument("--no-progress", action="store_true",
                       help="do not show progress (pass, recorded steps, slowest rank) on the last row of the "
                            "terminal")
    group.add_argument("--no-argv", action="store_true",
                       help="do not store arguments in run.json (by default they are stored, with *** for values "
                            "whose names look secret (token, key, password, ...) and for passwords in URLs)")
    group.add_argument("--passes", choices=("on", "off"), default="on",
                       help="off: record no passes; --watch then starts with the second step; the same as --steps off "
                            "(default: on)")
    group.add_argument("--watch", choices=("on", "off"), default=None,
                       help="after the passes, log the time and memory of every step, and the collectives of sampled "
                            "steps (default: on)")
    group.add_argument("--watch-bytes", default=None, metavar="SIZE",
                       help="maximum size of the --watch log of a rank, like 20MB; beyond it, older steps are stored "
                            "at lower resolution (default: 8MB)")
    group.add_argument("--metrics", default=None, metavar="PORT",
                       help="serve metrics of all ranks for Prometheus on this port (or HOST:PORT) while the job runs, "
                            "at /metrics, and the state of distprof watch at /state.json; needs "
                            "pip install 'distprof[metrics]'")
    group.add_argument("--on-finding", default=None, metavar="CMD|URL",
                       help="run this command with each new finding as JSON on its standard input, or POST it to this "
                            "URL; again when the finding ends")
    group.add_argument("--otlp", default=None, metavar="URL",
                       help="send the same metrics, and findings as log events, to the OpenTelemetry collector at this "
                            "URL, like http://localhost:4318 (OTLP over HTTP); needs pip install 'distprof[otlp]'")
    group.add_argument("--log-to", choices=("tensorboard", *OPEN_RUNS), default=None,
                       help="also log metrics and findings: tensorboard writes an event file to watch/tensorboard/ in "
                            "the run directory (needs pip install 'distprof[tensorboard]'); wandb and mlflow log to "
                            "the run that the script has open")
    group.add_argument("--window-every", default=None, metavar="MINUTES",
                       help="minimum time between two recordings that the watch starts to find the module and line of "
                            "a finding; off: none (default: 10)")
    group.add_argument("--hosts", default=None, metavar="on|off|PORT",
                       help="if hosts do not share --out: whether each launcher copies its files to the first host, "
                            "during the job and at its end; PORT (or HOST:PORT): where the first host listens "
                            "(default: on, any free port)")
    group.add_argument("--hosts-cert", default=None, metavar="FILE",
                       help="PEM file with the certificate that encrypts the connections of --hosts (TLS); required "
                            "on the first host; on another host, unencrypted connections are refused")
    group.add_argument("--hosts-key", default=None, metavar="FILE",
                       help="key of that certificate, if it is not in the same file")
    group.add_argument("--force", action="store_true", help="replace the run in --out")
    for axis in MESH_AXES:
        if not axis.is_part:
            group.add_argument(f"--{axis.name}", type=int, default=None, metavar="N",
                               help=f"{axis.title.replace(' ', '-')} size, for scripts without a DeviceMesh that "
                                    "names it")
    group.add_argument("--debug", action="store_true", help="show tracebacks of distprof's own errors")


def _refuse(message: str) -> NoReturn:
    raise UsageError(message, hint="distprof run --help lists the flags")


def axis_sizes(args: argparse.Namespace) -> dict[str, int]:
    """Returns sizes of mesh axes from the environment and the arguments, which take precedence.

    Raises:
        UsageError: A size is less than 1.
    """
    sizes = requested(os.environ)
    sizes |= {axis: getattr(args, axis) for axis in GIVEN_AXES if getattr(args, axis) is not None}
    wrong = [axis for axis, size in sizes.items() if size < 1]
    if wrong:
        raise UsageError(f"--{wrong[0]} must be at least 1, not {sizes[wrong[0]]}")
    return sizes


def asked_steps(args: argparse.Namespace) -> str:
    """Returns the plan in the arguments; '' for the default plan.

    Raises:
        UsageError: `--passes off` is combined with flags that select passes.
    """
    if args.passes == "on":
        return args.steps or ""
    if args.topics or args.execution_trace or args.steps not in (None, OFF):
        flag = "--topics" if args.topics else "--steps" if args.steps not in (None, OFF) else "--execution-trace"
        raise UsageError(f"--passes off contradicts {flag}", hint="remove one of them")
    return OFF


def step_every(args: argparse.Namespace) -> str | None:
    """Returns what ends a step according to the arguments, else to the environment; None if neither says.

    Raises:
        UsageError: The value is neither the name of an optimizer class nor a number.
    """
    given = StepEvery.parse(args.step_every) if args.step_every is not None else StepEvery.requested(os.environ)
    return given.text if given is not None else None


def world_size(args: argparse.Namespace) -> int | None:
    """Returns the number of ranks; None if torchrun determines it at run time (elastic jobs).

    Raises:
        UsageError: torchrun does not accept the number of nodes or ranks.
    """
    from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

    try:
        least, most = parse_min_max_nnodes(args.nnodes)
        return most * determine_local_world_size(args.nproc_per_node) if least == most else None
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"torchrun does not accept --nnodes {args.nnodes} --nproc-per-node {args.nproc_per_node}: "
                         f"{error}",
                         hint="--nproc-per-node 4") from error


def is_one_node(args: argparse.Namespace) -> bool:
    """Returns whether the job runs on this machine only."""
    return args.nnodes in ("1", "1:1")


def may_restart(args: argparse.Namespace) -> bool:
    """Returns whether torchrun may restart the ranks, after a failure or when nodes join or leave."""
    least, _, most = str(args.nnodes).partition(":")
    return args.max_restarts > 0 or (most not in ("", least))


def sets_rendezvous(args: argparse.Namespace) -> bool:
    """Returns whether a flag, or a PET_ variable (torchrun's default for a flag), configures the rendezvous."""
    defaults = job_parser()
    return any(f"PET_{name.upper()}" in os.environ or getattr(args, name) != defaults.get_default(name)
               for name in RENDEZVOUS)
