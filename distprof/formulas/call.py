"""One call of an operator: arguments by the names of its schema, whatever way they were passed, and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments and output of one call."""

    arguments: dict[str, Any]
    output: Any

    @classmethod
    def of(cls, func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Call:
        """Names positional arguments; arguments that were left out have their default."""
        schema = func._schema.arguments
        defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
        named = dict(zip((argument.name for argument in schema), args, strict=False))
        return cls(defaults | named | kwargs, output)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def first_output(self) -> Any:
        """The output, or the first of several."""
        return self.output[0] if isinstance(self.output, (tuple, list)) else self.output
