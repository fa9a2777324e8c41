"""DeepSpeed's report: numbers by module come in, its text goes out, line by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from distprof.compat.deepspeed_numbers import Numbers
from distprof.compat.deepspeed_strings import (
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
class ModelParams:
    """Parameters over all model-parallel ranks."""

    plain: int
    expert: int
    expert_tensor_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that a report is made of."""

    model: nn.Module
    numbers: Callable[[nn.Module], Numbers]
    model_params: ModelParams
    engine: Any = None
    recompute_fwd_factor: float = 0.0
    compat: bool = False
    """Leaves the deepest level out, as DeepSpeed does."""


def report(profile: Profile, *, profile_step: int, module_depth: int, top_modules: int, detailed: bool) -> str:
    """The whole text, without the last line end."""
    lines = ["", TITLE, f"Profile Summary at step {profile_step}:", NOTATIONS, *_summary(profile), "", AGGREGATED,
             *aggregated(profile, module_depth=module_depth, top_modules=top_modules)]
    if detailed:
        lines += ["", DETAILED, ORDER, NOTES, _tree(profile)]
    return "\n".join([*lines, END])


def _line(name: str, value: Any) -> str:
    return f"{name + ' ':<70}  {value:<8}"


def _rate(name: str, flops: float, seconds: float) -> str:
    return _line(name, flops_to_string(flops / seconds) if seconds else "-")


def _summary(profile: Profile) -> Iterator[str]:
    total, engine = profile.numbers(profile.model), profile.engine
    if engine:
        yield from _engine_sizes(profile)
    yield _line("params per GPU:", params_to_string(total.params))
    yield from _model_params(profile.model_params)
    yield _line("fwd MACs per GPU:", macs_to_string(total.macs))
    yield _line("fwd flops per GPU:", number_to_string(total.flops))
    yield _line("fwd flops of model = fwd flops per GPU * mp_size:",
                number_to_string(total.flops * (engine.mp_world_size if engine else 1)))
    timed = bool(engine and engine.wall_clock_breakdown())
    forward = _timer(engine, "fwd") if timed else total.seconds
    yield _line("fwd latency:", duration_to_string(forward) if forward else "-")
    yield _rate("fwd FLOPS per GPU = fwd flops per GPU / fwd latency:", total.flops, forward)
    if timed:
        yield from _iteration(profile, total.flops, forward)
    elif not forward:
        yield NOTHING_RAN


def _engine_sizes(profile: Profile) -> Iterator[str]:
    engine = profile.engine
    replicas = engine.dp_world_size if engine.dp_world_size is not None else engine.seq_dp_world_size
    yield _line("world size:", engine.world_size)
    yield _line("data parallel size:", replicas)
    yield _line("model parallel size:", engine.mp_world_size)
    yield _line("batch size per GPU:", engine.train_micro_batch_size_per_gpu())
    if engine.has_moe_layers:
        yield _line("expert tensor parallelism enabled:", profile.model_params.expert_tensor_parallel)


def _model_params(params: ModelParams) -> Iterator[str]:
    if params.expert:
        yield _line("params of model:", params_to_string(params.plain + params.expert))
        yield _line("   non-expert params of model:", params_to_string(params.plain))
        yield _line("   expert params of model:", params_to_string(params.expert))
    else:
        yield _line("params of model = params per GPU * mp_size:", params_to_string(params.plain))


def _timer(engine: Any, name: str) -> float:
    return float(engine.timers(name).elapsed(False)) / 1000  # DeepSpeed's timers give milliseconds


def _iteration(profile: Profile, flops: int, forward: float) -> Iterator[str]:
    engine, factor = profile.engine, 2 + profile.recompute_fwd_factor
    backward, step = _timer(engine, "bwd"), _timer(engine, "step")
    whole = forward + backward + step
    yield _line("bwd latency:", duration_to_string(backward))
    yield _rate(f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency:", factor * flops, backward)
    yield _rate(f"fwd+bwd FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / (fwd+bwd latency):",
                (factor + 1) * flops, forward + backward)
    yield _line("step latency:", duration_to_string(step))
    yield _line("iter latency:", duration_to_string(whole))
    yield _rate(f"FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / iter latency:", (factor + 1) * flops, whole)
    samples = engine.train_micro_batch_size_per_gpu() * engine.world_size
    yield _line("samples/second:", round(samples / whole, DEFAULT_PRECISION) if whole else "-")


def aggregated(profile: Profile, *, module_depth: int, top_modules: int) -> Iterator[str]:
    """The modules with most parameters, MACs and latency at each depth, by class."""
    levels: dict[int, dict[str, list[Numbers]]] = {}
    _walk(profile, profile.model, 0, levels)
    deepest = len(levels) - 1 if profile.compat else len(levels)
    shown = deepest if module_depth == -1 else min(module_depth, len(levels))
    yield f"Top {top_modules} modules in terms of params, MACs or fwd latency at different model depths:"
    for depth in range(shown):
        yield f"depth {depth}:"
        yield f"    params      - {_top(levels[depth], 'params', params_to_string, top_modules)}"
        yield f"    MACs        - {_top(levels[depth], 'macs', macs_to_string, top_modules)}"
        yield f"    fwd latency - {_top(levels[depth], 'seconds', duration_to_string, top_modules)}"


def _walk(profile: Profile, module: nn.Module, depth: int, levels: dict[int, dict[str, list[Numbers]]]) -> None:
    levels.setdefault(depth, defaultdict(list))[type(module).__name__].append(profile.numbers(module))
    for child in module.children():
        _walk(profile, child, depth + 1, levels)


def _top(classes: dict[str, list[Numbers]], quantity: str, text: Callable[[float], str], top: int) -> dict[str, str]:
    sums = {name: sum(getattr(one, quantity) for one in each) for name, each in classes.items()}
    ranked = sorted(sums.items(), key=lambda item: item[1], reverse=True)
    return {name: text(value) for name, value in ranked[:min(top, len(sums))]}


def _tree(profile: Profile) -> str:
    """The repr of the model with each module's numbers in front of its own description."""
    total = profile.numbers(profile.model)
    with _described(profile.model, lambda module: _description(profile.numbers(module), total)):
        return repr(profile.model)


def _description(one: Numbers, total: Numbers) -> str:
    return ", ".join((
        f"{params_to_string(one.params)} = {_share(one.params, total.params)}% Params",
        f"{macs_to_string(one.macs)} = {_share(one.macs, total.macs)}% MACs",
        f"{duration_to_string(one.seconds)} = {_share(one.seconds, total.seconds)}% latency",
        flops_to_string(round(one.flops / one.seconds, DEFAULT_PRECISION) if one.seconds else 0)))


def _share(part: float, whole: float) -> str:
    return f"{round(100 * part / whole, DEFAULT_PRECISION) if whole else 0:g}"


@contextmanager
def _described(model: nn.Module, describe: Callable[[nn.Module], str]) -> Iterator[None]:
    """Modules describe themselves with numbers inside; afterwards as before."""
    kept = [(module, vars(module).get("extra_repr")) for module in model.modules()]
    try:
        for module, _ in kept:
            text = ", ".join(filter(None, (describe(module), module.extra_repr())))
            vars(module)["extra_repr"] = lambda text=text: text
        yield
    finally:
        for module, before in kept:
            vars(module).pop("extra_repr", None)
            if before is not None:
                vars(module)["extra_repr"] = before
