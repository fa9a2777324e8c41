"""What is measured of a model between the start and the end of a profile."""

from __future__ import annotations

import weakref
from collections.abc import Collection

from torch import nn

from distprof.compat.deepspeed.forward_record import ForwardRecord
from distprof.compat.deepspeed.module_profiles import ModuleProfiles
from distprof.compat.deepspeed.params import ParamCounts
from distprof.errors import UsageError
from distprof.reporters.deepspeed_layout import ModuleProfile

HINT = "call this after start_profile and before end_profile"


class Measurement:
    """Forward calls and parameters of one model.

    Args:
        model: The model; its modules can be asked for with `profile_of_module` while this object lives.
        ignored: Exact types of modules whose work counts as that of the module around them.
        exact: Counts what DeepSpeed counts, bugs included.
    """

    def __init__(self, model: nn.Module, *, ignored: Collection[type], exact: bool) -> None:
        self.model = model
        self.exact = exact
        self.record = ForwardRecord(model, ignored=ignored, exact=exact)
        self.params: dict[int, ParamCounts] = {}
        """By id of the module."""
        self.reset()

    def reset(self) -> None:
        """Forgets the calls and counts the parameters anew."""
        self.record.clear()
        self.params = {id(module): ParamCounts.of(module, logical=not self.exact) for module in self.model.modules()}
        _LIVING.update(dict.fromkeys(self.params, self))

    def profiles(self) -> ModuleProfiles:
        """The numbers of all modules as they are now."""
        return ModuleProfiles(self.params, self.record.amounts(), self.record.seconds())


_LIVING: weakref.WeakValueDictionary[int, Measurement] = weakref.WeakValueDictionary()
"""id of a module -> the latest measurement of it."""


def profile_of_module(module: nn.Module) -> ModuleProfile:
    """Work and time of a module of any model that is being measured.

    Raises:
        UsageError: None of the models that are being measured has this module.
    """
    measurement = _LIVING.get(id(module))
    if measurement is None or not any(sub is module for sub in measurement.model.modules()):
        raise UsageError(f"expected a module of a model that is being profiled, found a {type(module).__name__}",
                         hint=HINT)
    return measurement.profiles().of(module)
