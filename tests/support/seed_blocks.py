"""Code blocks of the documents in ../shared/seeds, which have lost their line breaks, restored in separate files."""

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
"""Block -> correct text in the block, and the misprint in its document, which is not valid Python."""
ALSO = {"001-deepspeed": "004"}
"""Block -> second document that also has it."""
CODE = re.compile(r"^ *(?:import|from|def|with|for|if|git|pip|sudo|python3?|chakra_\w+) |^@|\w+\.step\(\)|\w+ = \w+[.(]"
                  r"|```(?:python|json)\s*[^`\s]", re.MULTILINE)
"""Matches lines that are code."""
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="needs the documents of ../shared/seeds")


def blocks() -> list[str]:
    """Returns the names of all blocks."""
    return sorted(path.stem for path in BLOCKS.glob("*.txt"))


def code(name: str, table: Mapping[str, str] = {}) -> str:
    """Returns a block as runnable Python, with lines replaced according to `table`."""
    lines = (BLOCKS / f"{name}.txt").read_text().splitlines()
    return "".join(f"{table.get(line, line)}\n" for line in lines)


def document(number: str) -> str:
    """Returns the text of a document without the line numbers beside its code."""
    path, = SEEDS.glob(f"{number}_*.txt")
    return re.sub(r"^1\n(?:\d+\n)*", "\n", path.read_text(), flags=re.MULTILINE)


def printed(name: str) -> re.Pattern[str]:
    """Returns a pattern for a block as printed in its document, with any white space."""
    text = (BLOCKS / f"{name}.txt").read_text().replace(*MISPRINTS.get(name, ("", "")))
    return re.compile(r"\s*".join(map(re.escape, "".join(text.split()))))
