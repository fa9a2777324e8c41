"""Sums costs of operators from formulas alone, without a recorder."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from distprof import formulas
from distprof.formulas.composite_operators import admit_mode, dismiss_mode, run_parts
from distprof.shape_formulas.operator_call import Cost


class Counter(TorchDispatchMode):
    """Sums formulas over all operators that run; decomposes operators without a formula, as the count pass does."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.by_op: dict[str, int] = {}
        self.costs: list[tuple[str, Cost]] = []

    def __enter__(self):
        admit_mode(self)
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        dismiss_mode(self)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        known = formulas.has_formula(func, kwargs)
        if not known:
            output = run_parts(self, func, args, kwargs)
            if output is not NotImplemented:
                return output
        output = func(*args, **kwargs)
        cost = formulas.cost(func, args, kwargs, output)
        self.costs.append((formulas.name_of(func), cost))
        if known:
            name = formulas.name_of(func).removeprefix("aten::")
            self.by_op[name] = self.by_op.get(name, 0) + cost.flops
        return output

    def total(self, field: str = "macs") -> int:
        return sum(getattr(cost, field) for _, cost in self.costs)


def macs(function, *args, **kwargs) -> int:
    with Counter() as counter:
        function(*args, **kwargs)
    return counter.total()
