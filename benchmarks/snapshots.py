"""Measures `distprof memory` on a memory snapshot of a gigabyte, and `pickle.load` of the same file beside it.

    python benchmarks/snapshots.py [--gb 1] [--depth 25] [--in FOLDER]

The snapshot is what torch would have written of an allocator that `tests/support/caching_allocator.py` plays, with a
stack of so many frames for each entry. Memory is the largest resident set (VmHWM).
"""

from __future__ import annotations

import argparse
import gc
import pickle
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from processes import timed

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.caching_allocator import TORCH, Allocator, Frames, snapshot

LAYERS = 48
LOAD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
print(sum(map(len, data["device_traces"])), "entries")
"""


def write(path: Path, num_bytes: int, depth: int) -> None:
    """A training job of `LAYERS` layers, as long as it takes to fill the file."""
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


def main() -> None:
    """Writes the snapshot in a process of its own size, then measures both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=1)
    parser.add_argument("--depth", type=int, default=25)
    parser.add_argument("--in", dest="folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder, "rank0.pickle")
        # a program that a large one starts counts its pages as its own
        writer = get_context("spawn").Process(target=write, args=(path, int(asked.gb * 1e9), asked.depth))
        writer.start()
        writer.join()
        for name, command in (("distprof memory", [sys.executable, "-m", "distprof", "memory", str(path)]),
                              ("pickle.load", [sys.executable, "-c", LOAD, str(path)])):
            cost = timed(command)
            print(f"{name:16} {path.stat().st_size / 1e6:8.0f} MB {cost.wall_s:8.1f} s wall {cost.cpu_s:8.1f} s CPU "
                  f"{cost.max_rss_bytes / 1e6:8.0f} MB resident, {cost.others_cores:.1f} cores busy with others")


if __name__ == "__main__":
    main()
