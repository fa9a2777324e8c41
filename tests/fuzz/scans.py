"""The fuzz targets over the compiled merge engine: libFuzzer under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent / "scan"
FLAGS = ("-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TARGETS = {"events": 6, "damage": 3, "slices": 1}
"""Name of a target -> its share of the time."""
AGAIN = "make fuzz-replay FILE={}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a target did."""

    target: str
    runs: int
    edges: int
    """Of the target and the engine, that were reached."""
    crashes: list[Path]

    def __str__(self) -> str:
        return f"{self.target}: {self.runs} inputs, {self.edges} edges, {len(self.crashes)} crashes"


def compiler() -> list[str] | None:
    """clang, or what CLANG says; None where there is none."""
    command = shlex.split(os.environ.get("CLANG", "clang"))
    return command if shutil.which(command[0]) else None


def build(target: str, out: Path) -> Path:
    """The program that looks for crashes."""
    program = out / f"fuzz_{target}"
    out.mkdir(parents=True, exist_ok=True)
    subprocess.run([*(compiler() or ["clang"]), *FLAGS, "-DLIBFUZZER", "-fsanitize=fuzzer", "-o", program,
                    HERE / f"{target}_target.c"], check=True)
    return program


def build_replay(target: str, out: Path, command: tuple[str, ...] = ("cc",)) -> Path:
    """The program that runs a target on files, which every compiler with sanitizers can make; to optimize takes longer.
    """
    program = out / f"replay_{target}"
    out.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, *FLAGS, "-O0", "-o", program, HERE / f"{target}_target.c", HERE / "replay.c"], check=True)
    return program


def search(target: str, out: Path, seconds: int) -> Searched:
    """Runs a target for some time, in as many runs as it has crashes.

    Args:
        target: A key of `TARGETS`.
        out: Takes in the program, the corpus as it grows, and crashes.
        seconds: How long.
    """
    corpus, crashes = out / "corpus" / target, out / "crashes"
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    before = set(crashes.iterdir())
    done = subprocess.run(
        [build(target, out), corpus, HERE / "corpus" / target, f"-max_total_time={seconds}",
         f"-dict={HERE}/events.dict", f"-artifact_prefix={crashes}/{target}-", "-print_final_stats=1", "-timeout=60"],
        capture_output=True, text=True, errors="replace", check=False)
    (out / f"{target}.log").write_text(done.stderr)
    found = sorted(set(crashes.iterdir()) - before)
    for crash in found:
        print(f"found: {crash}\n  {AGAIN.format(crash)}")
    runs, edges = (re.findall(form, done.stderr) for form in (r"\n#(\d+)\s", r"cov: (\d+)"))
    return Searched(target=target, runs=int(runs[-1]) if runs else 0, edges=int(edges[-1]) if edges else 0,
                    crashes=found)
