"""Measures `distprof comms` on a made-up run of many ranks: reading, matching, aligning, measuring, blaming.

    python benchmarks/comms.py [--ranks 512] [--rows 1000000] [--lost 0] [--repeat 3] [--record]

The run is made up: tensor parallel in groups of 8 x data parallel in groups of the rest, each rank a table of what it
issued, a host a group of 8, clocks never compared: they are estimated from the collectives. `--lost` takes so many rows
away, each of a rank by chance: then collectives have to be found by more than their numbers. `--record` puts the table
at the end of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import merge_text as text
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from processes import timed

from distprof.contract import rank_json
from distprof.contract.group_ranks import text_of
from distprof.contract.parquet import schema_of
from distprof.contract.paths import RANK_JSON, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import COLLECTIVES

PROGRAM = Path(__file__).parent / "programs" / "comms_rows.py"
RESULTS = Path(__file__).parent / "RESULTS.md"
TP = 8
"""Ranks of a host, and of a tensor-parallel group."""
STEPS = 4
LAYERS = 16
NOW_NS = 1_795_273_665_086_560_780
HEAD = ("part", "wall s", "CPU s", "rows a second")


class Job:
    """Calls of all ranks of a made-up job: per layer two all_reduce of the tp group; per step gradients in buckets."""

    def __init__(self, num_ranks: int, num_rows: int, seed: int = 0) -> None:
        """Says what every rank issues, and when each collective happened."""
        self.num_ranks, self._chance = num_ranks, np.random.default_rng(seed)
        self._per_rank = num_rows // num_ranks
        self._times = {name: self._chance.integers(50_000, 2_000_000, self._per_rank).cumsum() + NOW_NS
                       for name in ("all",)}

    def rows(self, rank: int) -> dict[str, Any]:
        """Columns of a rank's table."""
        number = np.arange(self._per_rank)
        in_step = number % (self._per_rank // STEPS or 1)
        is_dp = in_step % 3 == 2
        groups = [list(range(rank // TP * TP, rank // TP * TP + TP)), list(range(rank % TP, self.num_ranks, TP))]
        names = [f"tp{rank // TP}", f"dp{rank % TP}"]
        op = np.where(~is_dp, 0, np.where(in_step % 2 == 0, 1, 2))
        sizes = np.where(is_dp, 4 * 1024 * (1 + in_step % LAYERS), 8192)
        sequence = np.where(is_dp, np.cumsum(is_dp) - 1, np.cumsum(~is_dp) - 1)
        arrival = self._times["all"] + self._chance.integers(0, 40_000, self._per_rank)
        end = self._times["all"] + 50_000 + self._chance.integers(0, 2_000, self._per_rank)
        return {
            "step": number // (self._per_rank // STEPS or 1), "op": [("all_reduce", "all_gather", "reduce_scatter")[one]
                                                                      for one in op.tolist()],
            "group": [names[one] for one in is_dp.astype(int).tolist()],
            "group_description": [("mesh_tp", "mesh_dp")[one] for one in is_dp.astype(int).tolist()],
            "group_ranks": [text_of(groups[one]) for one in is_dp.astype(int).tolist()],
            "group_size": [len(groups[one]) for one in is_dp.astype(int).tolist()], "sequence": sequence,
            "group_sequence": sequence + 7, "num_elements": sizes // 4, "size_bytes": sizes,
            "dtype": ["float32"] * self._per_rank, "asynchronous": is_dp, "enqueue_ns": arrival - 5_000,
            "start_ns": arrival, "end_ns": end, "timed_by": ["timeline"] * self._per_rank,
            "module_path": [f"layers.{one % LAYERS}" for one in in_step.tolist()],
            "phase": [("forward", "backward")[one] for one in is_dp.astype(int).tolist()],
        }


def make(folder: Path, num_ranks: int, num_rows: int, lost: int) -> int:
    """Writes the run and gives its number of rows."""
    job, chance = Job(num_ranks, num_rows), random.Random(0)
    unlucky = [chance.randrange(num_ranks) for _ in range(lost)]
    total = 0
    for rank in range(num_ranks):
        columns = {**dict.fromkeys(COLLECTIVES.names()), **job.rows(rank), "rank": rank, "mp_size": TP,
                   "dp_size": num_ranks // TP}
        total += write_rank(folder / rank_folder(rank), rank, num_ranks, columns,
                            [chance.randrange(num_rows // num_ranks) for one in unlucky if one == rank])
    return total


def write_rank(folder: Path, rank: int, num_ranks: int, columns: dict[str, Any], lost: list[int]) -> int:
    """One rank folder: who it is, and its collectives."""
    folder.mkdir(parents=True)
    schema = schema_of(COLLECTIVES, {})
    length = len(columns["step"])
    arrays = [pa.array([value] * length if value is None or isinstance(value, int) else value, field.type)
              for field, value in ((field, columns[field.name]) for field in schema)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    table = table.take(np.delete(np.arange(length), lost))
    pq.write_table(table, folder / COLLECTIVES.file, compression="zstd")
    rank_json.write(folder / RANK_JSON, RankJson(
        run_id="made", status="complete", rank=rank, world_size=num_ranks, host=f"host{rank // TP}",
        boot_id=f"b{rank // TP}", topology={"dp": num_ranks // TP, "tp": TP},
        coordinates={"dp": rank // TP, "tp": rank % TP}, topology_source="made", mp_size=TP, dp_size=num_ranks // TP,
        num_steps=STEPS, files={COLLECTIVES.file: table.num_rows}))
    return int(table.num_rows)


def measure(args: argparse.Namespace) -> str:
    """The table of the report."""
    folder = Path(tempfile.mkdtemp(prefix="comms-"))
    try:
        rows = make(folder, args.ranks, args.rows, args.lost)
        runs = [json.loads(timed([sys.executable, str(PROGRAM), str(folder)]).printed.splitlines()[-1])
                for _ in range(args.repeat)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    best = min(runs, key=lambda run: sum(run["seconds"].values()))
    total = sum(best["seconds"].values())
    cpu = {**best["cpu_seconds"], "all": sum(best["cpu_seconds"].values())}
    lines = [[name, text.number(seconds, 2), text.number(cpu[name], 2), text.number(rows / seconds, 0)]
             for name, seconds in {**best["seconds"], "all": total}.items()]
    peak = max(run["bytes"] for run in runs)
    said = (f"{args.ranks} ranks, {best['rows']} rows, {best['collectives']} collectives, {best['complete']} rows in "
            f"complete ones, {args.lost} rows lost; peak memory {peak / 1e6:.0f} MB (VmHWM); fastest of {args.repeat} "
            f"runs.")
    return f"{text.machine()}\n\n{said}\n\n{text.table(HEAD, lines)}"


def record(section: str) -> None:
    """Puts it at the end of RESULTS.md, under the heading of this benchmark."""
    content = RESULTS.read_text().rstrip("\n")
    heading = "## comms.py"
    if heading not in content.splitlines():
        content += f"\n\n{heading}"
    RESULTS.write_text(f"{content}\n\n{section}\n")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512, help="multiple of 8 (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of all ranks (default: %(default)s)")
    parser.add_argument("--lost", type=int, default=0, help="rows that are missing (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="add the table to RESULTS.md")
    args = parser.parse_args()
    try:
        section = measure(args)
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
    print(section)
    if args.record:
        record(section)


if __name__ == "__main__":
    main()
