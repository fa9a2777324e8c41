"""The packages that the drop-ins stand in for; tests that need one skip where it is missing."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session")
def fvcore_package():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own imports
        return pytest.importorskip("fvcore.nn", reason="needs fvcore (distprof[peers])")


@pytest.fixture(scope="session")
def deepspeed_package():
    package = pytest.importorskip("deepspeed.profiling.flops_profiler.profiler",
                                  reason="needs deepspeed (distprof[peers])")
    package.logger.setLevel("WARNING")
    return package
