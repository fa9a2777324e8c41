"""A model and the arguments of one call, from a factory or the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from distprof.errors import UsageError

RETURNS = "a model, (model, inputs) or (model, args, kwargs)"
ALL_INPUTS = "or write a factory that returns (model, inputs) or (model, args, kwargs)"
LACKS_INPUTS = (TypeError, AttributeError, KeyError, IndexError, ValueError, AssertionError)
"""Exceptions that a model may raise if it gets too few inputs."""


class ModelCall(NamedTuple):
    """A model and the arguments of one call."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    from_factory: bool = True
    """Whether the arguments came from the factory; False if they came from the command line or if there are none."""

    @classmethod
    def of(cls, made: object, spec: str) -> ModelCall:
        """Interprets what a factory returned.

        Raises:
            UsageError: It is not one of `RETURNS`.
        """
        parts = made if isinstance(made, tuple) else (made,)
        if isinstance(parts[0] if parts else None, nn.Module):
            if len(parts) == 1:
                return cls(parts[0], from_factory=False)
            if len(parts) == 2 and isinstance(parts[1], Mapping):
                return cls(parts[0], (), dict(parts[1]))
            if len(parts) == 2 or (len(parts) == 3 and isinstance(parts[2], Mapping)):
                return cls(parts[0], _positional(parts[1]), dict(*parts[2:]))
        found = f"({', '.join(type(part).__name__ for part in parts)})" if parts is made else type(made).__name__
        raise UsageError(f"{spec} must return {RETURNS}, not {found}",
                         hint="inputs are a tensor, a tuple or a dict, args a tensor or a tuple, kwargs a dict")

    def check(self) -> None:
        """Checks the arguments against the signature of `forward`.

        Raises:
            UsageError: Some are missing or too many.
        """
        signature = self._signature()
        try:
            if signature is not None:
                signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise UsageError(f"wrong inputs for {type(self.model).__name__}.forward{signature}: {error}",
                             hint=f"--input-shape 1,3,224,224 per tensor; {ALL_INPUTS}") from error

    def hint_for(self, error: BaseException) -> str | None:
        """Returns a hint if the model may have raised because it got too few inputs, else None."""
        signature = self._signature()
        if self.from_factory or signature is None or not isinstance(error, LACKS_INPUTS):
            return None
        given = signature.bind(*self.args, **self.kwargs).arguments
        left = [_spelled(parameter) for name, parameter in signature.parameters.items() if name not in given]
        shown = ", ".join(left[:MOST_NAMES] + ["..."] * (len(left) > MOST_NAMES))
        return f"{type(self.model).__name__}.forward also takes {shown}; {ALL_INPUTS}" if left else None

    def _signature(self) -> inspect.Signature | None:
        """Returns the signature of `forward`; None if it cannot be determined."""
        try:
            return inspect.signature(self.model.forward)
        except Exception:  # noqa: BLE001 (access to an attribute of a model may raise anything)
            return None


MOST_NAMES = 6
"""Maximum number of inputs that a hint names."""


def _positional(given: Any) -> tuple[Any, ...]:
    return tuple(given) if type(given) in (tuple, list) else (given,)  # not isinstance: a packed sequence is a tuple


def _spelled(parameter: inspect.Parameter) -> str:
    stars: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name
