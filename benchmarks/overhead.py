"""What recording costs: step times of the demo model with and without it, paired in one process, as ratios.

    python benchmarks/overhead.py [--rounds 15] [--steps 12]

Each round times plain steps, records one run, and times plain steps again: "off" is the second block over the first.
The spread of plain over plain is the noise of this machine; a ratio inside it is no difference.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import distprof

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from train_ddp import Transformer


def stepper() -> Callable[[], float]:
    """A function that trains one step of the demo model and gives its seconds."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(1000, (8, 65))

    def step() -> float:
        begin = time.perf_counter()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - begin

    return step


def block(step: Callable[[], float], num_steps: int) -> float:
    """Median step time of a block of steps."""
    return statistics.median(step() for _ in range(num_steps))


def inside_pass(step: Callable[[], float], name: str, num_steps: int) -> float:
    """Median step time inside one pass; the step that writes the results is left out."""
    plan = {"wait": 0, "count": 0, "time": 0, "trace": 0} | {name: num_steps + 2}
    plan |= {"count": 1} if name == "wait" else {}
    with tempfile.TemporaryDirectory() as folder, distprof.record(
            Path(folder) / "run", steps=",".join(f"{key}={value}" for key, value in plan.items())):
        step()
        times = [step() for _ in range(num_steps)]
        for _ in range(2):
            step()
    return statistics.median(times)


def measure(rounds: int, num_steps: int) -> dict[str, list[float]]:
    """Ratios to the plain block before, by what was on."""
    step = stepper()
    block(step, 2 * num_steps)
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in ("plain", "off", "wait", "time", "trace", "count"):
            plain = block(step, num_steps)
            ratios.setdefault("plain ms", []).append(plain * 1e3)
            if name == "off":
                inside_pass(step, "time", 1)
            timed = inside_pass(step, name, num_steps) if name in ("wait", "time", "trace", "count") else block(
                step, num_steps)
            ratios.setdefault(name, []).append(timed / plain)
    return ratios


def main() -> None:
    """Prints one line per mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, 1 thread; "
          f"{args.rounds} rounds of {args.steps} steps")
    print(f"{'step time over plain':<32}{'median':>8}{'25 %':>8}{'75 %':>8}")
    labels = {"plain": "plain again (noise)", "off": "off: after the last pass", "wait": "wait pass",
              "time": "time pass", "trace": "trace pass", "count": "count pass"}
    measured = measure(args.rounds, args.steps)
    print(f"plain step {statistics.median(measured.pop('plain ms')):.1f} ms")
    for name, values in measured.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{labels[name]:<32}{middle:>8.3f}{low:>8.3f}{high:>8.3f}")


if __name__ == "__main__":
    main()
