"""Code of the documents in ../shared/seeds, whose line breaks are lost, beside the files that have them restored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.jobs import ROOT

SEEDS = ROOT.parent / "shared" / "seeds"
BLOCKS = Path(__file__).parent / "data" / "seeds"
"""`<number of the document>-<name>.txt`: a block of code with line breaks and indentation."""
MISPRINTS = {
    "000-alexnet": ("224))", "224)))"),
    **dict.fromkeys(("002-plain", "002-profile", "002-trace", "002-profiling"), ("model):", "model)")),
}
"""What the block says -> what the document says, which no Python accepts."""
ALSO = {"001-deepspeed": "004"}
"""Blocks that a second document has too."""
CODE = re.compile(r"^ *(?:import|from|def|with|for|if|git|pip|sudo|python3?|chakra_\w+) |^@|\w+\.step\(\)|\w+ = \w+[.(]"
                  r"|```(?:python|json)\s*[^`\s]", re.MULTILINE)
"""What shows that a line is code."""
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="needs the documents of ../shared/seeds")


def blocks() -> list[str]:
    """Names of all blocks."""
    return sorted(path.stem for path in BLOCKS.glob("*.txt"))


def code(name: str, table: Mapping[str, str] = {}) -> str:
    """A block that Python can run, with its lines of the table replaced by one line each."""
    lines = (BLOCKS / f"{name}.txt").read_text().splitlines()
    return "".join(f"{table.get(line, line)}\n" for line in lines)


def document(number: str) -> str:
    """The text of a document; the numbers of lines beside its code are removed."""
    path, = SEEDS.glob(f"{number}_*.txt")
    return re.sub(r"^1\n(?:\d+\n)*", "\n", path.read_text(), flags=re.MULTILINE)


def printed(name: str) -> re.Pattern[str]:
    """A block as its document prints it: white space may be anywhere."""
    text = (BLOCKS / f"{name}.txt").read_text().replace(*MISPRINTS.get(name, ("", "")))
    return re.compile(r"\s*".join(map(re.escape, "".join(text.split()))))
