"""Runs the tools of Chakra as programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.jobs import PATIENCE_S

BIN = Path(sys.executable).parent


def has_chakra() -> bool:
    """Returns whether the tools are installed."""
    return (BIN / "chakra_jsonizer").is_file()


needs_chakra = pytest.mark.skipif(not has_chakra(), reason="needs mlc-chakra")


def chakra(tool, *arguments, cwd):
    done = subprocess.run([BIN / f"chakra_{tool}", *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def jsonized(path):
    """Returns the nodes that the jsonizer writes, as a sequence of JSON objects."""
    chakra("jsonizer", "--input_filename", path, "--output_filename", path.with_suffix(".json"), cwd=path.parent)
    decoder, text, at, found = json.JSONDecoder(), path.with_suffix(".json").read_text(), 0, []
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found[1:]


def converted(path):
    chakra("converter", "PyTorch", "--input", path, "--output", path.with_suffix(".et"), cwd=path.parent)
    return Counter(node["type"] for node in jsonized(path.with_suffix(".et")))
