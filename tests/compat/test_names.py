"""Names that programs import from the drop-ins, and the arguments those take."""

from __future__ import annotations

import inspect

import pytest

from distprof.compat import deepspeed, fvcore, megengine

DEEPSPEED = {
    "DEFAULT_PRECISION", "FlopsProfiler", "bytes_to_string", "duration_to_string", "flops_to_string",
    "get_model_profile", "get_module_duration", "get_module_flops", "get_module_macs", "macs_to_string",
    "number_to_string", "params_to_string"}
FVCORE = {
    "ActivationCountAnalysis", "FlopCountAnalysis", "Handle", "JitModelAnalysis", "activation_count", "flop_count",
    "flop_count_str", "flop_count_table", "get_shape", "parameter_count", "parameter_count_table"}
MEGENGINE = {"Profiler", "is_profiling", "merge_trace_events", "profile", "scope", "trace"}


@pytest.mark.parametrize(("package", "names"), [(deepspeed, DEEPSPEED), (fvcore, FVCORE), (megengine, MEGENGINE)])
def test_exported_names(package, names):
    assert set(package.__all__) == names
    assert all(hasattr(package, name) for name in names)


def same_arguments(ours, theirs) -> bool:
    """Ours takes all that theirs takes, in the same order, and may take more."""
    mine, wanted = list(inspect.signature(ours).parameters), list(inspect.signature(theirs).parameters)
    return mine[:len(wanted)] == wanted


def test_deepspeeds_names_and_arguments(deepspeed_package):
    assert set(dir(deepspeed_package)) >= DEEPSPEED
    for name in DEEPSPEED - {"DEFAULT_PRECISION", "FlopsProfiler"}:
        assert same_arguments(getattr(deepspeed, name), getattr(deepspeed_package, name)), name
    for name, method in inspect.getmembers(deepspeed_package.FlopsProfiler, inspect.isfunction):
        assert same_arguments(getattr(deepspeed.FlopsProfiler, name), method), name


def test_fvcores_names(fvcore_package):
    homes = fvcore_package, fvcore_package.jit_handles, fvcore_package.jit_analysis
    assert set().union(*map(dir, homes)) >= FVCORE
    for name, method in inspect.getmembers(fvcore_package.FlopCountAnalysis, inspect.isfunction):
        if not name.startswith("_"):
            assert same_arguments(getattr(fvcore.FlopCountAnalysis, name), method), name
