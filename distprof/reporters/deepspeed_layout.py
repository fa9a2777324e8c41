"""The layout of DeepSpeed's report: numbers come in, lines go out. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distprof.reporters.deepspeed_formats import (
    DEFAULT_PRECISION,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)

TITLE = "-------------------------- DeepSpeed Flops Profiler --------------------------"
AGGREGATED = "----------------------------- Aggregated Profile per GPU -----------------------------"
DETAILED = "------------------------------ Detailed Profile per GPU ------------------------------"
END = "------------------------------------------------------------------------------"
NOTATIONS = """\
Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""
ORDER = """\
Each module profile is listed after its name in the following order: \

params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd latency, fwd \
FLOPS
"""
NOTES = """\
Note: 1. Work of a module outside of its submodules, like a loss computed by a function, is in its own line only.
2. FLOPs follow a counting convention, so a rate can lie above the peak of the device.
3. The latency of the root is the time of its forward call; with an engine the summary above has the engine's timer.
"""
NOTHING_RAN = "no forward call of the model was seen between start_profile and stop_profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """One module, submodules included."""

    params: int
    macs: int
    flops: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """Parameters over all model-parallel ranks."""

    plain: int
    expert: int
    expert_tensor_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the job."""

    world: int
    data_parallel: int
    model_parallel: int
    batch: int | None
    """Samples of a rank in a step; None where nobody knows."""
    expert_tensor_parallel: bool | None = None
    """None without mixture-of-experts layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Times of one step."""

    forward: float
    backward: float
    step: float


def page(profile_step: int, summary: Sequence[str], levels: Sequence[str], tree: str | None) -> str:
    """The whole text, without the last line end."""
    lines = ["", TITLE, f"Profile Summary at step {profile_step}:", NOTATIONS, *summary, "", AGGREGATED, *levels]
    if tree is not None:
        lines += ["", DETAILED, ORDER, NOTES, tree]
    return "\n".join([*lines, END])


def _line(name: str, value: Any) -> str:
    return f"{name + ' ':<70}  {value:<8}"


def _rate(name: str, flops: float, seconds: float) -> str:
    return _line(name, flops_to_string(flops / seconds) if seconds else "-")


def summary(total: Numbers, params: ModelParams, *, sizes: Sizes | None = None, times: StepSeconds | None = None,
            recompute_fwd_factor: float = 0.0) -> Iterator[str]:
    """Totals, and what the engine knows where there is one."""
    shards = sizes.model_parallel if sizes is not None else 1
    if sizes is not None:
        yield from _sizes(sizes)
    yield _line("params per GPU:", params_to_string(total.params))
    yield from _model_params(params)
    yield _line("fwd MACs per GPU:", macs_to_string(total.macs))
    yield _line("fwd flops per GPU:", number_to_string(total.flops))
    yield _line("fwd flops of model = fwd flops per GPU * mp_size:", number_to_string(total.flops * shards))
    forward = times.forward if times is not None else total.seconds
    yield _line("fwd latency:", duration_to_string(forward) if forward else "-")
    yield _rate("fwd FLOPS per GPU = fwd flops per GPU / fwd latency:", total.flops, forward)
    if times is not None and sizes is not None:
        yield from _iteration(total.flops, times, sizes, 2 + recompute_fwd_factor)
    elif not forward:
        yield NOTHING_RAN


def _sizes(sizes: Sizes) -> Iterator[str]:
    yield _line("world size:", sizes.world)
    yield _line("data parallel size:", sizes.data_parallel)
    yield _line("model parallel size:", sizes.model_parallel)
    yield _line("batch size per GPU:", "-" if sizes.batch is None else sizes.batch)
    if sizes.expert_tensor_parallel is not None:
        yield _line("expert tensor parallelism enabled:", sizes.expert_tensor_parallel)


def _model_params(params: ModelParams) -> Iterator[str]:
    if params.expert:
        yield _line("params of model:", params_to_string(params.plain + params.expert))
        yield _line("   non-expert params of model:", params_to_string(params.plain))
        yield _line("   expert params of model:", params_to_string(params.expert))
    else:
        yield _line("params of model = params per GPU * mp_size:", params_to_string(params.plain))


def _iteration(flops: int, times: StepSeconds, sizes: Sizes, factor: float) -> Iterator[str]:
    forward, backward, whole = times.forward, times.backward, times.forward + times.backward + times.step
    yield _line("bwd latency:", duration_to_string(backward))
    yield _rate(f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency:", factor * flops, backward)
    yield _rate(f"fwd+bwd FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / (fwd+bwd latency):",
                (factor + 1) * flops, forward + backward)
    yield _line("step latency:", duration_to_string(times.step))
    yield _line("iter latency:", duration_to_string(whole))
    yield _rate(f"FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / iter latency:", (factor + 1) * flops, whole)
    known = sizes.batch is not None and whole
    yield _line("samples/second:", round((sizes.batch or 0) * sizes.world / whole, DEFAULT_PRECISION) if known else "-")


Level = Mapping[str, Sequence[Numbers]]
"""Class name -> its modules at one depth."""


def aggregated(levels: Sequence[Level], top_modules: int) -> Iterator[str]:
    """The classes with most parameters, MACs and latency at each depth."""
    yield f"Top {top_modules} modules in terms of params, MACs or fwd latency at different model depths:"
    for depth, level in enumerate(levels):
        yield f"depth {depth}:"
        yield f"    params      - {_top(level, 'params', params_to_string, top_modules)}"
        yield f"    MACs        - {_top(level, 'macs', macs_to_string, top_modules)}"
        yield f"    fwd latency - {_top(level, 'seconds', duration_to_string, top_modules)}"


def _top(level: Level, quantity: str, text: Callable[[float], str], top: int) -> dict[str, str]:
    sums = {name: sum(getattr(one, quantity) for one in each) for name, each in level.items()}
    ranked = sorted(sums.items(), key=lambda item: item[1], reverse=True)
    return {name: text(value) for name, value in ranked[:min(top, len(sums))]}


def description(one: Numbers, total: Numbers) -> str:
    """What stands in front of a module's own description."""
    return ", ".join((
        f"{params_to_string(one.params)} = {_share(one.params, total.params)}% Params",
        f"{macs_to_string(one.macs)} = {_share(one.macs, total.macs)}% MACs",
        f"{duration_to_string(one.seconds)} = {_share(one.seconds, total.seconds)}% latency",
        flops_to_string(round(one.flops / one.seconds, DEFAULT_PRECISION) if one.seconds else 0)))


def _share(part: float, whole: float) -> str:
    return f"{round(100 * part / whole, DEFAULT_PRECISION) if whole else 0:g}"
