"""Run directories of ours in which files of rank 1, or run.json, are damaged."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.merges.chance import Chance
from fuzz.merges.damage import ODD, damaged_file, damaged_text, damaged_trace
from fuzz.merges.files import packed
from fuzz.merges.traces import random_trace, text_of, value_text
from support.simulator.cases import random_case


@cache
def recorded() -> Path:
    """A run of two ranks with all tables that a simulated job has, and without a trace."""
    folder = Path(tempfile.mkdtemp(prefix="distprof-fuzz-"))
    random_case(1, (2, 2), "ddp").write(folder)
    about = {"format": 1, "run_id": "simulated", "world_size": 2, "argv": ["a.py"]}
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def write_run(folder: Path, chance: Chance) -> None:
    """Rank 0 is whole, rank 1 is not."""
    shutil.copytree(recorded(), folder, dirs_exist_ok=True)
    good = text_of(random_trace(chance, 0), chance).encode()
    trace = random_trace(chance, 1)
    if chance.one_in(2):
        damaged_trace(trace, chance)
    text = text_of(trace, chance).encode("utf-8", "surrogatepass")
    rank0, rank1 = folder / "rank00000", folder / "rank00001"
    (rank0 / "trace.json.gz").write_bytes(gzip.compress(good, 1))
    data = packed(damaged_text(text, chance) if chance.one_in(2) else text, chance)
    (rank1 / "trace.json.gz").write_bytes(damaged_file(data, chance))
    for _ in range(chance.choice([0, 1, 1, 2])):
        chance.call([_other_values, _other_values, _damaged, _damaged, _lost, _in_place_of], folder, chance)


def _one(folder: Path, chance: Chance) -> Path:
    files = sorted(path for path in (folder / "rank00001").iterdir() if path.is_file())
    return chance.choice([*files, folder / "run.json"])


def _other_values(folder: Path, chance: Chance) -> None:
    """Of rank.json or run.json."""
    path = chance.choice([folder / "run.json", folder / "rank00001" / "rank.json"])
    try:
        known: dict[str, Any] = dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return  # it is damaged enough
    key = chance.choice([*known, "clock", "clock_sync", "files", "topology", "passes", "params", "notes", "é"])
    known[key] = chance.choice([*ODD, -1, "\x1b[31m", {"a": -1}, [1], 2**63, 10**30, 1.5, "x" * 1000, "failed"])
    path.write_bytes(value_text(known).encode("utf-8", "surrogatepass"))


def _damaged(folder: Path, chance: Chance) -> None:
    path = _one(folder, chance)
    if path.is_dir():
        return
    data = path.read_bytes() if path.exists() else b""
    path.write_bytes(damaged_file(damaged_file(data[:-1] or b"x", chance), chance))


def _lost(folder: Path, chance: Chance) -> None:
    path = _one(folder, chance)
    if not path.is_dir():
        path.unlink(missing_ok=True)


def _in_place_of(folder: Path, chance: Chance) -> None:
    """A file of another kind, or a folder."""
    path = _one(folder, chance)
    if path.is_dir():
        return
    path.unlink(missing_ok=True)
    if chance.one_in(3):
        path.mkdir()
    elif chance.one_in(2):
        path.write_bytes(chance.choice([b"", b"PAR1", b"{}", b"[]", b"\0" * 100, b"null", b"PAR1" * 3]))
    else:
        shutil.copy(chance.choice(sorted((folder / "rank00000").iterdir())), path)
