"""DeepSpeed's flops profiler as a drop-in: the same names, arguments and report, counted by our record.

    from distprof.compat.deepspeed import FlopsProfiler, get_model_profile

Nothing is patched and no module gets an attribute. By default the plain bugs of the package are put right;
`compat=True` gives its numbers and its text to the unit (docs/compat.md lists the bugs).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from distprof.compat.deepspeed.numbers import ParamNumbers, Snapshot
from distprof.compat.deepspeed.record import ForwardRecord
from distprof.compat.deepspeed.report import ReportInput, aggregated, report
from distprof.errors import UsageError
from distprof.files import write_text
from distprof.model.isolation import undisturbed
from distprof.reporters.deepspeed_formats import (
    DEFAULT_PRECISION,
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from distprof.reporters.deepspeed_layout import ModelParams, Numbers

__all__ = [
    "DEFAULT_PRECISION", "FlopsProfiler", "bytes_to_string", "duration_to_string", "flops_to_string",
    "get_model_profile", "get_module_duration", "get_module_flops", "get_module_macs", "macs_to_string",
    "number_to_string", "params_to_string",
]
_NOT_STARTED = "no profile: call this after start_profile and before end_profile\n"
_PROFILERS: weakref.WeakValueDictionary[int, FlopsProfiler] = weakref.WeakValueDictionary()
"""id of a module -> the profiler that has numbers for it."""


class FlopsProfiler:
    """Counts and times the forward calls of a model between `start_profile` and `stop_profile`.

    Args:
        model: The model; the program calls it.
        ds_engine: A DeepSpeed engine, or what has its attributes; adds its sizes and timers to the report.
        recompute_fwd_factor: Forward work repeated in backward, as a share of forward; for the backward lines.
        compat: Counts and prints what DeepSpeed 0.19.8 does, bugs included.
    """

    def __init__(self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0, *,
                 compat: bool = False) -> None:
        self.model = model
        self.ds_engine = ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self.compat = compat
        self.started = False
        self.func_patched = False
        """True while calls are recorded; nothing is patched."""
        self.flops: int | None = None
        self.macs: int | None = None
        self.params: int | None = None
        self._record: ForwardRecord | None = None
        self._params: dict[int, ParamNumbers] = {}

    def start_profile(self, ignore_list: Iterable[type] | None = None) -> None:
        """Starts recording, from zero.

        Args:
            ignore_list: Exact types of modules whose work counts as that of the module around them.
        """
        self._begin(ignore_list).start()
        self.func_patched = True

    def stop_profile(self) -> None:
        """Stops recording; the numbers stay."""
        if self._record is not None:
            self._record.stop()
        self.func_patched = False

    def reset_profile(self) -> None:
        """Begins again from zero and counts the parameters."""
        if self._record is None:
            self._record = ForwardRecord(self.model, ignored=(), exact=self.compat)
        self._record.clear()
        self._params = {id(module): ParamNumbers.of(module, logical=not self.compat)
                        for module in self.model.modules()}
        _PROFILERS.update(dict.fromkeys(self._params, self))

    def end_profile(self) -> None:
        """Stops recording and forgets the numbers."""
        if not self.started:
            return
        self.stop_profile()
        self.started = False
        self._record, self._params = None, {}

    def get_total_flops(self, as_string: bool = False) -> Any:  # noqa: FBT001 (DeepSpeed's signature)
        """FLOPs of the forward calls, by DeepSpeed's convention.

        Raises:
            UsageError: There is no profile: before start_profile or after end_profile. So do the other totals.
        """
        flops = self._numbers(self.model).flops
        return number_to_string(flops) if as_string else flops

    def get_total_macs(self, as_string: bool = False) -> Any:  # noqa: FBT001
        """Multiply-accumulates of the forward calls."""
        macs = self._numbers(self.model).macs
        return macs_to_string(macs) if as_string else macs

    def get_total_duration(self, as_string: bool = False) -> Any:  # noqa: FBT001
        """Seconds of the forward calls."""
        seconds = self._numbers(self.model).seconds
        return duration_to_string(seconds) if as_string else seconds

    def get_total_params(self, as_string: bool = False) -> Any:  # noqa: FBT001
        """Parameters of this rank, experts included."""
        params = self._numbers(self.model).params
        return params_to_string(params) if as_string else params

    def is_expert_tensor_parallelism_enabled(self) -> bool:
        """What the first MoE layer says."""
        for module in self.model.modules():
            if any(kind.__name__ == "MoE" for kind in type(module).__mro__) and hasattr(
                    module, "enable_expert_tensor_parallelism"):
                return bool(module.enable_expert_tensor_parallelism)
        return False

    def print_model_profile(self, profile_step: int = 1, module_depth: int = -1, top_modules: int = 1,
                            detailed: bool = True, output_file: str | None = None) -> None:  # noqa: FBT001
        """Prints the report.

        Args:
            profile_step: Step named in the headline.
            module_depth: Depths shown in the aggregated part; -1 for all.
            top_modules: Classes named per depth.
            detailed: Adds the tree of modules.
            output_file: File to write instead of standard output; its folders are made.

        Raises:
            OutputError: The file cannot be written.
        """
        if not self.started:
            sys.stdout.write("" if self.compat else _NOT_STARTED)
            return
        total = self._numbers(self.model)
        self.flops, self.macs, self.params = total.flops, total.macs, total.params
        text = report(self._profile(), profile_step=profile_step, module_depth=module_depth, top_modules=top_modules,
                      detailed=detailed)
        _write(text + "\n", output_file)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Prints the classes with most parameters, MACs and latency at each depth."""
        if self._record is None:
            sys.stdout.write(_NOT_STARTED)
            return
        sys.stdout.write("\n".join(aggregated(self._profile(), module_depth=module_depth,
                                              top_modules=top_modules)) + "\n")

    def _begin(self, ignore_list: Iterable[type] | None) -> ForwardRecord:
        """A new record that is not on yet."""
        self.stop_profile()
        self._record = ForwardRecord(self.model, ignored=set(ignore_list or ()), exact=self.compat)
        self.reset_profile()
        self.started = True
        return self._record

    def _profile(self) -> ReportInput:
        return ReportInput(model=self.model, numbers=self._snapshot().of, model_params=self._model_params(),
                           engine=self.ds_engine, recompute_fwd_factor=self.recompute_fwd_factor, compat=self.compat)

    def _model_params(self) -> ModelParams:
        params, engine = self._params[id(self.model)], self.ds_engine
        plain, experts = params.plain, params.all_experts
        if not engine:
            return ModelParams(plain=0, expert=0) if self.compat else ModelParams(plain=plain, expert=experts)
        shards = engine.mp_world_size
        if not engine.has_moe_layers:
            return ModelParams(plain=plain * shards, expert=0)
        expert_shards = shards if self.is_expert_tensor_parallelism_enabled() else 1
        return ModelParams(plain=plain * shards, expert=experts * expert_shards,
                           expert_tensor_parallel=expert_shards > 1)

    def _numbers(self, module: nn.Module) -> Numbers:
        return self._snapshot().of(module)

    def _snapshot(self) -> Snapshot:
        if self._record is None:
            raise UsageError("expected a profile, found none", hint="call this after start_profile and before "
                                                                    "end_profile")
        return Snapshot(self._params, self._record.amounts(), self._record.seconds())


def _profiler_of(module: nn.Module) -> FlopsProfiler:
    profiler = _PROFILERS.get(id(module))
    if profiler is None or not any(sub is module for sub in profiler.model.modules()):
        raise UsageError(f"expected a module of a model that is being profiled, found a {type(module).__name__}",
                         hint="call this after start_profile and before end_profile")
    return profiler


def get_module_flops(module: nn.Module) -> int:
    """FLOPs of a module of a model that is being profiled, submodules included."""
    return _profiler_of(module)._numbers(module).flops


def get_module_macs(module: nn.Module) -> int:
    """Multiply-accumulates likewise."""
    return _profiler_of(module)._numbers(module).macs


def get_module_duration(module: nn.Module) -> float:
    """Seconds likewise; of a module that is never called itself, like ModuleList, those of its children."""
    return _profiler_of(module)._numbers(module).seconds


def get_model_profile(
    model: nn.Module, input_shape: Sequence[int] | None = None, args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None, print_profile: bool = True, detailed: bool = True,  # noqa: FBT001
    module_depth: int = -1, top_modules: int = 1, warm_up: int = 1, as_string: bool = True,  # noqa: FBT001
    output_file: str | None = None, ignore_modules: Iterable[type] | None = None, mode: str = "forward", *,
    compat: bool = False,
) -> tuple[Any, Any, Any]:
    """Profiles one call of a model in eval mode; training flags, buffers and random state are put back.

    Args:
        model: The model.
        input_shape: Shape of the only input, a tensor of zeros of the type and on the device of the parameters.
        args: Positional arguments, where there is no `input_shape`.
        kwargs: Keyword arguments.
        print_profile: Prints the report.
        detailed: Adds the tree of modules to it.
        module_depth: Depths shown in its aggregated part; -1 for all.
        top_modules: Classes named per depth.
        warm_up: Calls in front of the one that is timed; work is counted in the last of them.
        as_string: Gives text like `4.54 M` instead of numbers.
        output_file: File for the report instead of standard output.
        ignore_modules: Exact types of modules whose work counts as that of the module around them.
        mode: `forward` calls the model, `generate` its method of that name.
        compat: Counts and prints what DeepSpeed 0.19.8 does, bugs included.

    Returns:
        FLOPs, MACs and parameters.

    Raises:
        UsageError: There is nothing to call, or nothing to call it with.
        OutputError: The report cannot be written.
        Exception: What the model raises; nothing stays switched on.
    """
    inputs, call = _inputs(model, input_shape, args, {} if kwargs is None else kwargs), _entry(model, mode)
    profiler = FlopsProfiler(model, compat=compat)
    with undisturbed([model]):
        model.eval()
        try:
            _measure(profiler._begin(ignore_modules), partial(call, *inputs, **(kwargs or {})), warm_up)
            total = profiler._numbers(model)
            if print_profile:
                profiler.print_model_profile(profile_step=warm_up, module_depth=module_depth, top_modules=top_modules,
                                             detailed=detailed, output_file=output_file)
        finally:
            profiler.end_profile()
    if as_string:
        return number_to_string(total.flops), macs_to_string(total.macs), params_to_string(total.params)
    return total.flops, total.macs, total.params


def _measure(record: ForwardRecord, call: Callable[[], Any], warm_up: int) -> None:
    """Warms up, counts in the last call of the warm-up and times the one behind it, so that neither disturbs."""
    try:
        for _ in range(warm_up - 1):
            call()
        if warm_up:
            record.start(times=False)
            call()
            record.stop()
        record.start(counts=not warm_up)
        call()
    finally:
        record.stop()


def _entry(model: nn.Module, mode: str) -> Callable[..., Any]:
    entries = {"forward": model, "generate": getattr(model, "generate", None)}
    entry = entries.get(mode)
    if entry is None:
        raise UsageError(f"expected mode forward or generate, found {mode!r}" if mode not in entries else
                         f"expected a model with a method generate, found {type(model).__name__}")
    return entry


def _inputs(model: nn.Module, shape: Sequence[int] | None, args: Any,
            kwargs: Any) -> Sequence[Any]:
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, found {type(model).__name__}")
    if shape is not None:
        if isinstance(shape, int) or not len(shape):
            raise UsageError(f"expected a shape like (1, 3, 224, 224) as input_shape, found {shape!r}")
        parameter = next(model.parameters(), torch.empty(()))
        return [torch.zeros(tuple(shape), dtype=parameter.dtype, device=parameter.device)]
    if isinstance(args, torch.Tensor) or not isinstance(kwargs, Mapping):
        wrong, found = ("args", args) if isinstance(args, torch.Tensor) else ("kwargs", kwargs)
        raise UsageError(f"expected {'a list' if wrong == 'args' else 'a dict'} as {wrong}, found "
                         f"{type(found).__name__}", hint="args=[a_tensor], kwargs={'input_ids': a_tensor}")
    if args is None or (not len(args) and not kwargs):
        raise UsageError("expected inputs for the model, found none", hint="give input_shape, args or kwargs")
    return list(args)


def _write(text: str, file: str | None) -> None:
    if file:
        write_text(Path(file), text)
    else:
        sys.stdout.write(text)
