"""Measures `distprof report`: of a recorded run, and of a made-up run of many ranks.

    python benchmarks/report.py [--run runs/demo] [--ranks 512] [--rows 1000000] [--repeat 3] [--record]

The made-up run has the collectives of comms.py (so many rows are so many calls of a collective on a rank), and of each
rank steps, times and FLOPs of modules, and counted operators. Wall and processor time are of the whole command, with
the start of Python. `--record` puts the table at the end of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import merge_text as text
import numpy as np
from comms import LAYERS, NOW_NS, RESULTS, STEPS, TP, Job, write_rank
from processes import Cost, Failed, timed

from distprof.contract import rank_json
from distprof.contract.parquet import write_table
from distprof.contract.paths import RANK_JSON, rank_folder
from distprof.contract.rank_json import ParamCount, RankJson
from distprof.contract.tables import COLLECTIVES, MODULES, OPS
from distprof.contract.tables import STEPS as STEPS_TABLE

HEADING = "## report.py"
HEAD = ("run", "output", "wall s", "CPU s", "largest resident set", "size", "other cores busy")
TIMED = 3
"""Steps of the time pass."""
INSIDE = ("norm1", "attention", "attention.qkv", "attention.out", "norm2", "mlp", "mlp.0", "mlp.1", "mlp.2")
KINDS = ("aten::mm", "aten::addmm", "aten::_softmax", "aten::native_layer_norm", "aten::gelu", "aten::add")


def make(folder: Path, num_ranks: int, num_rows: int) -> None:
    """Writes the run."""
    job = Job(num_ranks, num_rows)
    for rank in range(num_ranks):
        tags = {"rank": rank, "mp_size": TP, "dp_size": num_ranks // TP}
        rows, path = job.rows(rank), folder / rank_folder(rank)
        write_rank(path, rank, num_ranks, {**dict.fromkeys(COLLECTIVES.names()), **rows, **tags}, [])
        metadata = {"distprof.format": "1"}
        tables = {STEPS_TABLE: steps(rows, rank), MODULES: modules(rank), OPS: ops()}
        for table, found in tables.items():
            write_table(path, table, found, tags=tags, metadata=metadata)
        known = rank_json.read(path / RANK_JSON, RankJson)
        content = {name: getattr(known, name) for name in known.__struct_fields__}
        rank_json.write(path / RANK_JSON, RankJson(**content | {
            "params": ParamCount(params=10**9, stored_params=10**9, unique_params=8 * 10**9),
            "device_name": "NVIDIA H100 80GB HBM3", "passes": {"time": TIMED, "trace": STEPS},
            "files": {COLLECTIVES.file: len(rows["step"]), **{table.file: len(rows) for table, rows in tables.items()}},
        }))


def steps(rows: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """The timed steps, and those of the collectives."""
    begin, number = rows["enqueue_ns"], np.asarray(rows["step"])
    edges = [int(begin[np.searchsorted(number, step)]) for step in range(STEPS)] + [int(rows["end_ns"][-1])]
    spans = [("time", NOW_NS - (TIMED - at) * 10**9, 10**9 + 10**5 * rank) for at in range(TIMED)]
    spans += [("trace", edges[at], edges[at + 1] - edges[at]) for at in range(STEPS)]
    # the collectives are of steps 0 to STEPS - 1
    numbers = [*range(STEPS, STEPS + TIMED), *range(STEPS)]
    return [{"step": step, "pass": what, "start_ns": start, "end_ns": start + length, "duration_ns": length,
             "fwd_ns": length // 3 if what == "time" else None, "bwd_ns": length // 2 if what == "time" else None,
             "optimizer_ns": length // 20 if what == "time" else None, "samples": 8}
            for step, (what, start, length) in zip(numbers, spans, strict=True)]


def modules(rank: int) -> list[dict[str, Any]]:
    """A transformer."""
    chance = np.random.default_rng(rank)
    paths = ["", "layers", *(path for layer in range(2 * LAYERS) for path in (
        f"layers.{layer}", *(f"layers.{layer}.{name}" for name in INSIDE)))]
    times = chance.integers(10**6, 2 * 10**6, (len(paths), 4)).astype(float)
    return [{"module_path": path, "class_name": (path.rpartition(".")[2] or "Model").title(),
             "depth": path.count(".") + bool(path), "params": 10**6, "own_params": 0, "stored_params": 10**6,
             "trainable_params": 10**6, "param_bytes": 4 * 10**6, "buffers": 0, "buffer_bytes": 0, "fwd_macs": 10**9,
             "fwd_flops": 2 * 10**9, "bwd_flops": 4 * 10**9, "recompute_flops": 0, "calls": 1.0,
             "fwd_time_ns": mine[0], "fwd_self_time_ns": mine[1], "bwd_time_ns": mine[2], "bwd_self_time_ns": mine[3]}
            for path, mine in zip(paths, times.tolist(), strict=True)]


def ops() -> list[dict[str, Any]]:
    """What a step calls."""
    numbers = {"calls": 1.0, "macs": 1e9, "flops": 2e9, "causal_macs": 1e9, "recompute_macs": 0.0, "elements": 0.0,
               "estimate_flops": 0.0, "io_bytes": 1e6, "read_bytes": 5e5, "write_bytes": 5e5}
    return [{"module_path": f"layers.{layer}.mlp", "op": op, "phase": phase, "shapes": "[[512, 512]]",
             "dtype": "bfloat16", "kind": "contraction", "counted": True, "view": False, **numbers}
            for layer in range(2 * LAYERS) for op in KINDS for phase in ("forward", "backward")]


def measure(args: argparse.Namespace) -> str:
    """The section of the report."""
    folder = Path(tempfile.mkdtemp(prefix="report-"))
    try:
        runs = {} if args.run is None else {f"{args.run.name}, recorded": args.run}
        if args.ranks:
            make(folder / "made-up", args.ranks, args.rows)
            runs[f"{args.ranks} ranks, {args.rows} calls"] = folder / "made-up"
        lines = [line for name, run in runs.items() for line in lines_of(name, run, folder, args.repeat)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return f"{text.machine()} Fastest of {args.repeat} runs.\n\n{text.table(HEAD, lines)}"


def lines_of(name: str, run: Path, folder: Path, repeat: int) -> list[list[str]]:
    """The page, and its document."""
    page = folder / "report.html"
    lines = []
    for output, flags in (("HTML", ("--out", str(page), "--force")), ("JSON", ("--json",))):
        costs = [timed([sys.executable, "-m", "distprof", "report", *flags, str(run)]) for _ in range(repeat)]
        best = min(costs, key=lambda cost: cost.wall_s)
        num_bytes = page.stat().st_size if output == "HTML" else len(best.printed)
        if output == "JSON":
            json.loads(best.printed)
        lines.append([name, output, *_numbers(best), f"{num_bytes / 1e6:.2f} MB", text.number(best.others_cores, 1)])
    return lines


def _numbers(cost: Cost) -> tuple[str, ...]:
    return (text.number(cost.wall_s, 2), text.number(cost.cpu_s, 2), f"{cost.max_rss_bytes / 1e6:.0f} MB")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=None, help="a recorded run, to be measured as well")
    parser.add_argument("--ranks", type=int, default=512, help="multiple of 8; 0: none (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="calls on all ranks (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="add the table to RESULTS.md")
    args = parser.parse_args()
    try:
        section = measure(args)
    except Failed as error:
        sys.exit(str(error))
    print(section)
    if args.record:
        content = RESULTS.read_text().rstrip("\n")
        heading = "" if HEADING in content.splitlines() else f"\n\n{HEADING}"
        RESULTS.write_text(f"{content}{heading}\n\n{section}\n")


if __name__ == "__main__":
    main()
