"""DeepSpeed's `get_model_profile`: counts, times and prints one call of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from distprof.compat.deepspeed.forward_record import ForwardRecord
from distprof.compat.deepspeed.measurement import Measurement, types_of
from distprof.compat.deepspeed.profile_text import ProfileText, put_out
from distprof.errors import UsageError
from distprof.model.isolation import undisturbed
from distprof.reporters.deepspeed_layout import macs_to_string, number_to_string, params_to_string


def get_model_profile(
    model: nn.Module, input_shape: Sequence[int] | None = None, args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None, print_profile: bool = True, detailed: bool = True,  # noqa: FBT001
    module_depth: int = -1, top_modules: int = 1, warm_up: int = 1, as_string: bool = True,  # noqa: FBT001
    output_file: str | None = None, ignore_modules: Iterable[type] | type | None = None, mode: str = "forward", *,
    compat: bool = False,
) -> tuple[Any, Any, Any]:
    """Profiles one call of a model in eval mode; training flags, buffers and random state are restored.

    Args:
        model: The model.
        input_shape: Shape of the only input, a tensor of zeros with the type and device of the parameters.
        args: Positional arguments, if there is no `input_shape`.
        kwargs: Keyword arguments.
        print_profile: Whether to print the report.
        detailed: Whether the report includes the tree of modules.
        module_depth: Number of depths in its aggregated part; -1 for all.
        top_modules: Number of classes per depth.
        warm_up: Number of calls before the timed one; in these, work is counted and modules are timed.
        as_string: Whether to return text like `4.54 M` instead of numbers.
        output_file: File for the report instead of standard output.
        ignore_modules: One or several exact types of modules whose work counts as that of the enclosing module.
        mode: `forward` to call the model, `generate` to call its method of that name.
        compat: Whether to count and print like DeepSpeed 0.19.8, including its bugs.

    Returns:
        FLOPs, MACs and parameters.

    Raises:
        UsageError: The model, its inputs or `mode` are missing or invalid, or `ignore_modules` has something other than
            types.
        OutputError: The report cannot be written.
        Exception: Whatever the model raises; hooks and modes are removed.
    """
    ignored = types_of(ignore_modules, "ignore_modules")
    inputs, call = _inputs(model, input_shape, args, {} if kwargs is None else kwargs), _entry(model, mode)
    with undisturbed([model]):
        model.eval()
        measurement = Measurement(model, ignored=ignored, exact=compat)
        _measure(measurement.record, partial(call, *inputs, **(kwargs or {})), warm_up)
        total = measurement.profiles()[id(model)]
        if print_profile:
            put_out(ProfileText(measurement).whole(profile_step=warm_up, module_depth=module_depth,
                                                   top_modules=top_modules, detailed=detailed), output_file)
    if as_string:
        return number_to_string(total.flops), macs_to_string(total.macs), params_to_string(total.params)
    return total.flops, total.macs, total.params


def _measure(record: ForwardRecord, call: Callable[[], Any], warm_up: int) -> None:
    """Counts, times modules and times the model in three separate calls, the last ones, because they disturb each
    other.

    With one warm-up call, modules and the model are timed together; without any, everything happens in one call.
    """
    for _ in range(warm_up - 2):
        call()
    if warm_up:
        record.watch(call, times=False)
    record.watch(call, counts=not warm_up)
    if warm_up > 1:
        record.time_alone(call)


def _entry(model: nn.Module, mode: str) -> Callable[..., Any]:
    entries = {"forward": model, "generate": getattr(model, "generate", None)}
    entry = entries.get(mode)
    if entry is None:
        raise UsageError(f"mode must be forward or generate, not {mode!r}" if mode not in entries else
                         f"{type(model).__name__} has no method generate")
    return entry


def _inputs(model: nn.Module, shape: Sequence[int] | None, args: Any, kwargs: Any) -> Sequence[Any]:
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, not {type(model).__name__}")
    if shape is not None:
        if isinstance(shape, int) or not len(shape):
            raise UsageError(f"input_shape must be a shape like (1, 3, 224, 224), not {shape!r}")
        parameter = next(model.parameters(), torch.empty(()))
        return [torch.zeros(tuple(shape), dtype=parameter.dtype, device=parameter.device)]
    if isinstance(args, torch.Tensor) or not isinstance(kwargs, Mapping):
        wrong, found = ("args", args) if isinstance(args, torch.Tensor) else ("kwargs", kwargs)
        raise UsageError(f"{wrong} must be {'a list' if wrong == 'args' else 'a dict'}, not "
                         f"{type(found).__name__}", hint="args=[a_tensor], kwargs={'input_ids': a_tensor}")
    if args is None or (not len(args) and not kwargs):
        raise UsageError("no inputs for the model", hint="give input_shape, args or kwargs")
    return list(args)
