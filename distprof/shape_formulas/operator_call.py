"""One call of an operator: its arguments by schema name, however they were passed, and its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distprof.shape_formulas.operator_cost import Macs


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Arguments and output of one call."""

    arguments: dict[str, Any]
    output: Any

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def first_output(self) -> Any:
        """The output, or the first of several."""
        return self.output[0] if isinstance(self.output, (tuple, list)) else self.output


Formula = Callable[[OperatorCall], int]
"""Returns the MACs of one call."""
MacsFormula = Callable[[OperatorCall], int | Macs]
"""The same, with `Macs` where a mask or recomputation matters."""
