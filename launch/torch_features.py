"""What distprof uses of torch and not every build or version of it has; `distprof doctor` names what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from distprof.counting.meta_device import has_grouped_product_on_cpu
from distprof.model.compiled import can_skip_compiling
from distprof.recording.compiling.compile_log import can_log_compilations
from distprof.recording.hang.report import has_flight_recorder


class Feature(NamedTuple):
    """Something of torch that may be missing."""

    is_there: Callable[[], bool]
    without: str
    """What is missing, and what that means for a recording."""


FEATURES = (
    Feature(has_grouped_product_on_cpu,
            "no grouped matrix product for the CPU: mixture-of-experts models that use it run and are counted on GPUs "
            "only"),
    Feature(has_flight_recorder, "no flight recorder: stuck.json of a hanging rank has stacks but no collectives"),
    Feature(can_log_compilations, "no compiler report: `distprof waits` cannot show what torch.compile does"),
    Feature(can_skip_compiling, "hooks cannot be kept from being compiled: torch.compile takes longer while "
                                "recording"),
)


def lacking() -> list[str]:
    """What is missing here, one line each."""
    return [feature.without for feature in FEATURES if not feature.is_there()]
