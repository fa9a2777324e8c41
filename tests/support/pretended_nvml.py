"""Simulates GPUs: a library that replaces that of NVIDIA's driver, used in a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
USUAL = {"mhz": 1980, "most_mhz": 1980, "mw": 612_000, "most_mw": 700_000, "celsius": 61, "reasons": 0, "busy": 97,
         "corrected": 0, "uncorrected": 0, "link_errors": 3, "replays": 0, "lanes": 16}
SCRIPT = """
import itertools, json, os, random, sys
from pathlib import Path
from distprof.launch.watching.readings import gpus, rates

says, seconds = Path(os.environ["PRETENDED_NVML"]), itertools.count()
rates.time = type("time", (), {"monotonic": staticmethod(lambda: float(now))})
job = {4321}
readings = gpus.nvidia_readings(lambda: {3: 4321}, lambda: job)
for now, lines in enumerate(map(json.loads, sys.stdin)):
    says.write_text("".join(f"{gpu} {name} {value}\\n" for gpu, one in lines.items() for name, value in one.items()))
    values = {}
    for read in list(readings):
        try:
            read(values)
        except OSError:
            readings.remove(read)
    print(json.dumps(values))
"""


def asked(folder: Path, seconds: list[str]) -> list[str]:
    """Returns the readings of two GPUs.

    Args:
        folder: Folder in which the library is built.
        seconds: Values of the driver in each second as JSON: GPU -> name -> value.

    Returns:
        Columns in each second as JSON.
    """
    pytest.importorskip("pynvml")
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux")
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PRETENDED_NVML": str(folder / "said")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], input="\n".join(seconds), env=environ, text=True, check=True,
                          capture_output=True)
    return done.stdout.splitlines()
