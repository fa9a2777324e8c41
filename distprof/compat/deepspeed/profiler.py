"""DeepSpeed's `FlopsProfiler`: the same methods and attributes, for forward calls that distprof records.

Nothing is patched, and no module gets an attribute. By default, DeepSpeed's obvious bugs are corrected; `compat=True`
reproduces its numbers and text exactly (docs/compat.md lists the bugs).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from distprof.compat.deepspeed.measurement import HINT, Measurement, types_of
from distprof.compat.deepspeed.profile_text import ProfileText, put_out, splits_experts
from distprof.errors import UsageError
from distprof.reporters.deepspeed_layout import (
    ModuleProfile,
    duration_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)

NO_PROFILE = f"no profile: {HINT}\n"


@dataclass(eq=False, repr=False)
class FlopsProfiler:
    """Counts and times the forward calls of a model between `start_profile` and `stop_profile`.

    Args:
        model: The model; the program calls it.
        ds_engine: A DeepSpeed engine, or an object with its attributes; adds its sizes and timers to the report.
        recompute_fwd_factor: Forward work repeated in backward, as a fraction of forward; for the backward lines.
        compat: Whether to count and print like DeepSpeed 0.19.8, including its bugs.
    """

    model: nn.Module
    ds_engine: Any = None
    recompute_fwd_factor: float = 0.0
    compat: bool = field(default=False, kw_only=True)
    started: bool = field(default=False, init=False)
    func_patched: bool = field(default=False, init=False)
    """True while calls are recorded; nothing is patched."""
    flops: int | None = field(default=None, init=False)
    """Total of the last printed report, as are `macs` and `params`."""
    macs: int | None = field(default=None, init=False)
    params: int | None = field(default=None, init=False)
    _measurement: Measurement | None = field(default=None, init=False)

    def start_profile(self, ignore_list: Iterable[type] | type | None = None) -> None:
        """Starts recording, from zero.

        Args:
            ignore_list: One or several exact types of modules whose work counts as that of the enclosing module.

        Raises:
            UsageError: `ignore_list` has something other than types.
        """
        ignored = types_of(ignore_list, "ignore_list")
        self.stop_profile()
        self._measurement = Measurement(self.model, ignored=ignored, exact=self.compat)
        self._measurement.calls.start()
        self.started = self.func_patched = True

    def stop_profile(self) -> None:
        """Stops recording; the numbers are kept."""
        if self._measurement is not None:
            self._measurement.calls.stop()
        self.func_patched = False

    def reset_profile(self) -> None:
        """Begins again from zero, and counts the parameters again."""
        if self._measurement is None:
            self._measurement = Measurement(self.model, ignored=(), exact=self.compat)
        self._measurement.reset()

    def end_profile(self) -> None:
        """Stops recording and forgets the numbers."""
        if self.started:
            self.stop_profile()
            self.started, self._measurement = False, None

    def get_total_flops(self, as_string: bool = False) -> Any:  # noqa: FBT001 (DeepSpeed's signature)
        """Returns the FLOPs of the forward calls, by DeepSpeed's convention.

        Raises:
            UsageError: There is no profile, before start_profile or after end_profile. This applies to the other totals
                too.
        """
        flops = self._total().flops
        return number_to_string(flops) if as_string else flops

    def get_total_macs(self, as_string: bool = False) -> Any:  # noqa: FBT001
        """Returns the multiply-accumulates of the forward calls."""
        macs = self._total().macs
        return macs_to_string(macs) if as_string else macs

    def get_total_duration(self, as_string: bool = False) -> Any:  # noqa: FBT001
        """Returns the seconds of the forward calls."""
        seconds = self._total().seconds
        return duration_to_string(seconds) if as_string else seconds

    def get_total_params(self, as_string: bool = False) -> Any:  # noqa: FBT001
        """Returns the parameters of this rank, including experts."""
        params = self._total().params
        return params_to_string(params) if as_string else params

    def is_expert_tensor_parallelism_enabled(self) -> bool:
        """Returns whether the first MoE layer splits its experts."""
        return splits_experts(self.model)

    def print_model_profile(self, profile_step: int = 1, module_depth: int = -1, top_modules: int = 1,
                            detailed: bool = True, output_file: str | None = None) -> None:  # noqa: FBT001
        """Prints the report.

        Args:
            profile_step: Step named in the headline.
            module_depth: Number of depths in the aggregated part; -1 for all.
            top_modules: Number of classes per depth.
            detailed: Whether to include the tree of modules.
            output_file: File to write instead of standard output; its folders are created.

        Raises:
            OutputError: The file cannot be written.
        """
        if not self.started:
            sys.stdout.write("" if self.compat else NO_PROFILE)
            return
        total = self._total()
        self.flops, self.macs, self.params = total.flops, total.macs, total.params
        put_out(self._text().whole(profile_step=profile_step, module_depth=module_depth, top_modules=top_modules,
                                   detailed=detailed), output_file)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Prints the classes with the most parameters, MACs and latency at each depth."""
        if self._measurement is None:
            sys.stdout.write(NO_PROFILE)
        else:
            put_out("\n".join(self._text().top_modules(module_depth, top_modules)), None)

    def _measured(self) -> Measurement:
        if self._measurement is None:
            raise UsageError("there is no profile", hint=HINT)
        return self._measurement

    def _total(self) -> ModuleProfile:
        return self._measured().profiles()[id(self.model)]

    def _text(self) -> ProfileText:
        return ProfileText(self._measured(), self.ds_engine, self.recompute_fwd_factor)
