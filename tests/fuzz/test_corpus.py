"""Inputs of the fuzz targets, those that once broke something among them, break nothing."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fuzz import scans


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("target", scans.TARGETS)
def test_inputs_of_the_engine_break_nothing(target, tmp_path):
    inputs = sorted((scans.HERE / "corpus" / target).iterdir())
    assert inputs
    done = subprocess.run([scans.build_replay(target, tmp_path), *inputs], capture_output=True, text=True,
                          errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
