"""Measures `distprof memory` on a memory snapshot of a gigabyte, compared with `pickle.load` of the same file.

    python benchmarks/snapshots.py [--gigabytes 1] [--depth 25] [--repeat 1]

The snapshot is what torch would have written for the allocator that `tests/support/caching_allocator.py` simulates,
with a stack of `--depth` frames for each entry.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import sys
from pathlib import Path

from measuring.benchmark import DISTPROF, Found, Option, Ratio, files, run
from measuring.processes import apart
from measuring.tables import table
from measuring.turns import COSTS, cells, cpu_s, in_turns

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.caching_allocator import TORCH, Allocator, Frames, snapshot

LAYERS = 48
OURS, LOAD = "distprof memory", "pickle.load, and nothing else"
LOADER = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
print(sum(map(len, data["device_traces"])), "entries")
"""


def write(path: Path, num_bytes: int, depth: int) -> None:
    """Simulates a training job of `LAYERS` layers until the file has about `num_bytes`."""
    gc.disable()
    frames, one = Frames(), Allocator()
    stacks = {(layer, phase): ((f"{TORCH}/linear.py", 125, "forward"), ("/home/me/net.py", 10 * layer + phase, "block"),
                               *((f"{TORCH}/module.py", 1000 * layer + number, "_call_impl")
                                 for number in range(depth - 2))) for layer in range(LAYERS) for phase in range(4)}
    bytes_an_entry = 46 + 5 * depth
    kept: list[int] = []
    while len(one.trace) * bytes_an_entry < num_bytes:
        for layer in range(LAYERS):
            kept.append(one.alloc(4_000_000 + 512 * layer, frames(*stacks[layer, 0])))
            one.free(one.alloc(1_300_000, frames(*stacks[layer, 1])), frames(*stacks[layer, 2]))
        while kept:
            one.free(kept.pop(), frames(*stacks[len(kept), 3]))
    with path.open("wb") as file:
        pickle.dump(snapshot(one), file)


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per program."""
    with files(args) as folder:
        path = folder / "rank0.pickle"
        apart(write, path, int(args.gigabytes * 1e9), args.depth)
        found = in_turns({OURS: [*DISTPROF, "memory", str(path)], LOAD: [sys.executable, "-c", LOADER, str(path)]},
                         args.repeat)
        said = f"A snapshot of {path.stat().st_size / 1e6:.0f} MB, with stacks of {args.depth} frames:"
    return Found(text=[said, table(("program", *COSTS), [[name, *cells(costs)] for name, costs in found.items()])],
                 ratios={"CPU / pickle.load": Ratio(value=cpu_s(found[OURS]) / cpu_s(found[LOAD]))})


if __name__ == "__main__":
    run(measure, __doc__,
        gigabytes=Option(default=1.0, smallest=0.001, help="of the snapshot (default: %(default)s)"),
        depth=Option(default=25, smallest=5, help="frames of a stack (default: %(default)s)"),
        repeat=Option(default=1, smallest=1, help="runs of each (default: %(default)s)"))
