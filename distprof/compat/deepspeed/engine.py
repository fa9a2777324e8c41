"""What a DeepSpeed engine adds to the report: sizes of the job, its timers, parameters over all ranks."""

from __future__ import annotations

from typing import Any

from torch import nn

from distprof.compat.deepspeed.params import ParamCounts
from distprof.reporters.deepspeed_layout import JobSizes, ModelParams, StepSeconds


def job_sizes(engine: Any, params: ModelParams) -> JobSizes | None:
    """Sizes of the engine's job; None without an engine."""
    if not engine:
        return None
    replicas = engine.dp_world_size if engine.dp_world_size is not None else engine.seq_dp_world_size
    return JobSizes(world=engine.world_size, data_parallel=replicas, model_parallel=engine.mp_world_size,
                    batch=engine.train_micro_batch_size_per_gpu(),
                    expert_tensor_parallel=params.expert_tensor_parallel if engine.has_moe_layers else None)


def step_seconds(engine: Any) -> StepSeconds | None:
    """The engine's timers, which give milliseconds; None where they do not run."""
    if not engine or not engine.wall_clock_breakdown():
        return None
    forward, backward, step = (engine.timers(name).elapsed(False) / 1000 for name in ("fwd", "bwd", "step"))
    return StepSeconds(forward=forward, backward=backward, step=step)


def model_params(engine: Any, model: nn.Module, params: ParamCounts, *, exact: bool) -> ModelParams:
    """Parameters over all model-parallel ranks.

    Args:
        engine: May be None: the model is on one rank.
        model: Its first MoE layer decides whether experts are split.
        params: Of the model on this rank.
        exact: Zero without an engine, as DeepSpeed prints.
    """
    if not engine:
        return ModelParams(plain=0 if exact else params.plain, expert=0 if exact else params.all_experts)
    shards = engine.mp_world_size
    split = engine.has_moe_layers and splits_experts(model)
    experts = params.all_experts * (shards if split else 1) if engine.has_moe_layers else 0
    return ModelParams(plain=params.plain * shards, expert=experts, expert_tensor_parallel=split and shards > 1)


def splits_experts(model: nn.Module) -> bool:
    """True where the first MoE layer has tensor parallelism for its experts enabled."""
    for module in model.modules():
        if any(kind.__name__ == "MoE" for kind in type(module).__mro__) and hasattr(
                module, "enable_expert_tensor_parallelism"):
            return bool(module.enable_expert_tensor_parallelism)
    return False
