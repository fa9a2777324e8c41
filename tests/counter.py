"""FLOPs by operator of whatever runs inside: formulas alone, without a recorder."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from distprof import formulas


class Counter(TorchDispatchMode):
    """Sums formulas over everything that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.by_op: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        flops = formulas.flops(func, args, kwargs or {}, output)
        if flops is not None:
            name = func._schema.name.removeprefix("aten::")
            self.by_op[name] = self.by_op.get(name, 0) + flops
        return output
