"""DeepSpeed's report of a model: numbers by module and an engine come in, its text goes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from distprof.reporters import deepspeed_layout
from distprof.reporters.deepspeed_layout import ModelParams, Numbers, Sizes, StepSeconds, description, page, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """All that a report is made of."""

    model: nn.Module
    numbers: Callable[[nn.Module], Numbers]
    model_params: ModelParams
    engine: Any = None
    recompute_fwd_factor: float = 0.0
    compat: bool = False
    """Leaves the deepest level out, as DeepSpeed does."""


def report(profile: ReportInput, *, profile_step: int, module_depth: int, top_modules: int, detailed: bool) -> str:
    """The whole text, without the last line end."""
    top = summary(profile.numbers(profile.model), profile.model_params, sizes=_sizes(profile), times=_times(profile),
                  recompute_fwd_factor=profile.recompute_fwd_factor)
    levels = aggregated(profile, module_depth=module_depth, top_modules=top_modules)
    return page(profile_step, list(top), list(levels), _tree(profile) if detailed else None)


def _sizes(profile: ReportInput) -> Sizes | None:
    engine = profile.engine
    if not engine:
        return None
    replicas = engine.dp_world_size if engine.dp_world_size is not None else engine.seq_dp_world_size
    return Sizes(world=engine.world_size, data_parallel=replicas, model_parallel=engine.mp_world_size,
                 batch=engine.train_micro_batch_size_per_gpu(),
                 expert_tensor_parallel=profile.model_params.expert_tensor_parallel if engine.has_moe_layers else None)


def _times(profile: ReportInput) -> StepSeconds | None:
    """The engine's own timers, where they run; they give milliseconds."""
    engine = profile.engine
    if not engine or not engine.wall_clock_breakdown():
        return None
    forward, backward, step = (engine.timers(name).elapsed(False) / 1000 for name in ("fwd", "bwd", "step"))
    return StepSeconds(forward=forward, backward=backward, step=step)


def aggregated(profile: ReportInput, *, module_depth: int, top_modules: int) -> Iterator[str]:
    """The modules with most parameters, MACs and latency at each depth, by class."""
    levels: list[dict[str, list[Numbers]]] = []
    _walk(profile, profile.model, 0, levels)
    deepest = len(levels) - 1 if profile.compat else len(levels)
    yield from deepspeed_layout.aggregated(levels[:deepest if module_depth == -1 else module_depth], top_modules)


def _walk(profile: ReportInput, module: nn.Module, depth: int, levels: list[dict[str, list[Numbers]]]) -> None:
    if depth == len(levels):
        levels.append(defaultdict(list))
    levels[depth][type(module).__name__].append(profile.numbers(module))
    for child in module.children():
        _walk(profile, child, depth + 1, levels)


def _tree(profile: ReportInput) -> str:
    """The repr of the model with each module's numbers in front of its own description."""
    total = profile.numbers(profile.model)
    with _described(profile.model, lambda module: description(profile.numbers(module), total)):
        return repr(profile.model)


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
