"""One call of a model by distprof itself, forward and optionally backward, also on the meta device."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from distprof.counting.data_flow import are_real
from distprof.errors import UsageError
from distprof.model.scopes import ModuleScopes
from distprof.model.tensors import map_tensors, tensors

READS_VALUES = "the model reads tensor values, which do not exist on the meta device"
GROUPED = "torch's grouped matrix product does not support float32 on the meta device"
"""The cause for models with experts. On the CPU, `torch._grouped_mm` supports any precision, if torch has a kernel."""

NO_FLOAT32 = ("Expected inputs of BF16 type", "Expected mat_a to be BFloat16")
"""Parts of torch's error messages in that case: before torch 2.14, and since."""


class NotOnMeta(NamedTuple):
    """Why a model failed on the meta device."""

    cause: str
    cpu_can: bool
    """False if the model cannot run on the CPU either."""


def why_not_on_meta(error: BaseException) -> NotOnMeta | None:
    """Returns whether and why a model failed because of the meta device; None for other errors."""
    message = str(error)
    if any(words in message for words in NO_FLOAT32):
        return NotOnMeta(GROUPED, has_grouped_product_on_cpu())
    return NotOnMeta(READS_VALUES, cpu_can=True) if "meta" in message.lower() else None


def has_grouped_product_on_cpu() -> bool:
    """Returns whether torch has a CPU kernel for grouped matrix products; torch 2.8, for example, has none."""
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::_grouped_mm", "CPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A model and the arguments of the call.

    The arguments of a model on the meta device are moved there. A model with lazy parameters is copied, because its
    first call changes its modules.
    """

    function: Callable[..., Any]
    """A module, a bound method of one (`model.generate`), or any function that calls modules."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    backward: bool = False

    @classmethod
    def of(cls, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, backward: bool) -> Invocation:
        """Checks the model and prepares the arguments.

        Raises:
            UsageError: The model cannot be called.
        """
        if isinstance(function, type) or not callable(function):
            found = f"the class {function.__name__}" if isinstance(function, type) else repr(type(function).__name__)
            raise UsageError(f"expected a model or a function, not {found}",
                             hint="pass an instance of the class" if isinstance(function, type) else None)
        function = _not_lazy(function)
        parameters = list(module.parameters()) if (module := _owner(function)) is not None else []
        on_meta = bool(parameters) and all(parameter.is_meta for parameter in parameters)
        args, kwargs = map_tensors(_as_meta, (args, dict(kwargs))) if on_meta else (args, kwargs)
        return cls(function=function, args=tuple(args), kwargs=kwargs, backward=backward)

    @property
    def model(self) -> nn.Module | None:
        """The called module; None for a plain function."""
        return _owner(self.function)

    def run(self, scopes: ModuleScopes | None = None) -> Any:
        """Runs the call once.

        Raises:
            UsageError: Backward is requested, but no output has a gradient.
            Exception: Whatever the model raises, with a note that names the module.
        """
        try:
            result = self.function(*self.args, **self.kwargs)
        except Exception as error:
            where = scopes.failed_in if scopes is not None else None
            if where is not None:
                error.add_note(f"distprof: raised in {where.path or 'the root module'} ({where.class_name})")
            if self._on_meta() and (reason := why_not_on_meta(error)) is not None:
                error.add_note(f"distprof: {reason.cause}; " + (
                    "count it on the CPU" if reason.cpu_can else "this torch has no CPU kernel for it either"))
            raise
        if self.backward:
            ends = [tensor for tensor in tensors(result) if tensor.requires_grad]
            if not ends:
                raise _no_gradient(result)
            torch.autograd.backward(ends, [torch.ones_like(tensor) for tensor in ends])
        return result

    @property
    def is_real(self) -> bool | None:
        """Whether all tensors of the model and the call have data; None if no tensors are known."""
        parameters = self.model.parameters() if self.model is not None else ()
        return are_real((*parameters, *tensors((self.args, dict(self.kwargs)))))

    def _on_meta(self) -> bool:
        parameters = self.model.parameters() if self.model is not None else ()
        return any(tensor.is_meta for tensor in (*parameters, *tensors((self.args, dict(self.kwargs)))))


def _owner(function: object) -> nn.Module | None:
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def _not_lazy(function: Any) -> Any:
    """Returns the function, or the same function of a copy if the model has lazy parameters."""
    owner = _owner(function)
    if owner is None or not any(map(is_lazy, chain(owner.parameters(), owner.buffers()))):
        return function
    # torch cannot copy lazy buffers
    empty: Any = UninitializedBuffer
    fresh = {id(buffer): empty(buffer.requires_grad, buffer.data.device, buffer.data.dtype)
             for buffer in owner.buffers() if is_lazy(buffer)}
    twin = copy.deepcopy(owner, fresh)
    return twin if function is owner else types.MethodType(function.__func__, twin)


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    # detached: a meta gradient cannot flow back to the original tensor
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


def _no_gradient(result: object) -> UsageError:
    outputs = tensors(result)
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in outputs})
    if not torch.is_grad_enabled():
        hint = "gradients are off: call it outside torch.no_grad() and torch.inference_mode()"
    elif any(tensor.is_floating_point() or tensor.is_complex() for tensor in outputs):
        hint = "no parameter or input of the output requires gradients"
    elif outputs:
        hint = "only floating-point tensors have gradients"
    else:
        hint = "return a tensor, or a tuple, list, dict or dataclass of tensors"
    return UsageError("backward needs an output with a gradient, but found "
                      f"{f'tensors of {chr(44).join(dtypes)} without one' if outputs else type(result).__name__}",
                      hint=hint)
