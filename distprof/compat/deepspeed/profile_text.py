"""The text of a model's profile, whole or only its aggregated part, including what an engine adds."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from distprof.compat.deepspeed.measurement import Measurement, ParamCounts
from distprof.files import write_text
from distprof.reporters.deepspeed_layout import (
    JobSizes,
    ModelParams,
    ModuleProfile,
    StepSeconds,
    module_line,
    report_text,
    summary_lines,
    top_modules_lines,
)


class ProfileText:
    """Prints a measurement as DeepSpeed does.

    Args:
        measurement: Its numbers are read once, now.
        engine: A DeepSpeed engine or None.
        recompute_fwd_factor: Forward work repeated in backward, as a fraction of forward.
    """

    def __init__(self, measurement: Measurement, engine: object = None, recompute_fwd_factor: float = 0.0) -> None:
        self._model, self._exact = measurement.model, measurement.exact
        self._profiles = measurement.profiles()
        self._params = measurement.params[id(self._model)]
        self._engine, self._recompute_fwd_factor = engine, recompute_fwd_factor

    def whole(self, *, profile_step: int, module_depth: int, top_modules: int, detailed: bool) -> str:
        """Returns totals, the aggregated part and, if `detailed`, the tree of modules, without the last line end."""
        params = model_params(self._engine, self._model, self._params, exact=self._exact)
        summary = summary_lines(self._profiles[id(self._model)], params, sizes=job_sizes(self._engine, params),
                                times=step_seconds(self._engine), recompute_fwd_factor=self._recompute_fwd_factor)
        return report_text(profile_step, summary, self.top_modules(module_depth, top_modules),
                           self._tree() if detailed else None)

    def top_modules(self, module_depth: int, top_modules: int) -> Iterator[str]:
        """Yields the classes with the most parameters, MACs and latency, for this number of depths; -1 for all."""
        depths: list[dict[str, list[ModuleProfile]]] = []
        self._gather(self._model, 0, depths)
        deepest = len(depths) - 1 if self._exact else len(depths)  # DeepSpeed omits the deepest
        return top_modules_lines(depths[:deepest if module_depth == -1 else module_depth], top_modules)

    def _gather(self, module: nn.Module, depth: int, depths: list[dict[str, list[ModuleProfile]]]) -> None:
        if depth == len(depths):
            depths.append(defaultdict(list))
        depths[depth][type(module).__name__].append(self._profiles[id(module)])
        for child in module.children():
            self._gather(child, depth + 1, depths)

    def _tree(self) -> str:
        """Returns the repr of the model, with each module's numbers before its own description."""
        total = self._profiles[id(self._model)]
        with _described(self._model, lambda module: module_line(self._profiles[id(module)], total)):
            return repr(self._model)


@contextmanager
def _described(model: nn.Module, describe: Callable[[nn.Module], str]) -> Iterator[None]:
    """A context in which each module's own description is preceded by a text."""
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


def put_out(text: str, file: str | None) -> None:
    """Writes a text and a line end to a file, creating its folders, or to standard output.

    Raises:
        OutputError: The file cannot be written.
    """
    if file:
        write_text(Path(file), f"{text}\n")
    else:
        sys.stdout.write(f"{text}\n")


def job_sizes(engine: Any, params: ModelParams) -> JobSizes | None:
    """Returns the sizes of the engine's job; None without an engine."""
    if not engine:
        return None
    replicas = engine.dp_world_size if engine.dp_world_size is not None else engine.seq_dp_world_size
    return JobSizes(world=engine.world_size, data_parallel=replicas, model_parallel=engine.mp_world_size,
                    batch=engine.train_micro_batch_size_per_gpu(),
                    expert_tensor_parallel=params.expert_tensor_parallel if engine.has_moe_layers else None)


def step_seconds(engine: Any) -> StepSeconds | None:
    """Returns the values of the engine's timers, which are in milliseconds; None if they are off."""
    if not engine or not engine.wall_clock_breakdown():
        return None
    forward, backward, step = (engine.timers(name).elapsed(False) / 1000 for name in ("fwd", "bwd", "step"))
    return StepSeconds(forward=forward, backward=backward, step=step)


def model_params(engine: Any, model: nn.Module, params: ParamCounts, *, exact: bool) -> ModelParams:
    """Returns the parameters over all model-parallel ranks.

    Args:
        engine: The engine; None if the model is on one rank.
        model: The model, whose first MoE layer decides whether experts are split.
        params: Parameters of the model on this rank.
        exact: Whether to return zeros without an engine, as DeepSpeed prints.
    """
    if not engine:
        return ModelParams(plain=0 if exact else params.plain, expert=0 if exact else params.all_experts)
    shards = engine.mp_world_size
    split = engine.has_moe_layers and splits_experts(model)
    experts = params.all_experts * (shards if split else 1) if engine.has_moe_layers else 0
    return ModelParams(plain=params.plain * shards, expert=experts, expert_tensor_parallel=split and shards > 1)


def splits_experts(model: nn.Module) -> bool:
    """Returns whether the first MoE layer has tensor parallelism for its experts enabled."""
    for module in model.modules():
        if any(kind.__name__ == "MoE" for kind in type(module).__mro__) and hasattr(
                module, "enable_expert_tensor_parallelism"):
            return bool(module.enable_expert_tensor_parallelism)
    return False
