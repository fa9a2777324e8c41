"""Reads a DeepSpeed config file: its `flops_profiler` section, and which loggers of DeepSpeed it enables."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from distprof.errors import UsageError
from distprof.recording.plan import StepPlan

SECTION = "flops_profiler"
COMMS_LOGGER = "comms_logger"
BREAKDOWN = "wall_clock_breakdown"
REPORTED = ("count", "time")
"""Passes that DeepSpeed's report needs."""


class FlopsProfilerSection(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, with DeepSpeed's defaults."""

    enabled: bool = False
    recompute_fwd_factor: float = 0.0
    profile_step: int = 1
    """First recorded step, counted from 0."""
    module_depth: int = -1
    top_modules: int = 1
    detailed: bool = True
    output_file: str | None = None

    def plan(self) -> StepPlan:
        """Returns a plan that waits `profile_step` steps; the default plan if the section is not enabled."""
        return StepPlan(wait=self.profile_step) if self.enabled else StepPlan()


def read_section(path: Path) -> FlopsProfilerSection:
    """Reads and checks the section; the rest of the file is ignored.

    Raises:
        UsageError: The file does not exist or is not a JSON object, or a setting is wrong.
    """
    section = _content(path).get(SECTION, {})
    where = f"in {SECTION} of {path}"
    if not isinstance(section, dict):
        raise UsageError(f"{SECTION} in {path} must be an object, not {section!r}")
    names = FlopsProfilerSection.__struct_fields__
    unknown = next((name for name in section if name not in names), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, names, n=1)
        raise UsageError(f"unknown setting {unknown!r} {where}; choose from {', '.join(names)}",
                         hint=f"did you mean {near[0]!r}?" if near else None)
    try:
        settings = msgspec.convert(section, FlopsProfilerSection)
    except msgspec.ValidationError as error:
        raise UsageError(f"{str(error)[0].lower()}{str(error)[1:].replace('`', '').replace(' - at $.', ' for ')} "
                         f"{where}") from error
    if settings.profile_step < 0 or settings.top_modules < 0:
        raise UsageError(f"profile_step and top_modules {where} must be 0 or more, found profile_step "
                         f"{settings.profile_step}, top_modules {settings.top_modules}")
    return settings


def logger_notes(path: Path) -> Iterator[str]:
    """Yields notes on loggers that a config enables: how they affect the recording, and what distprof offers instead.

    Raises:
        UsageError: The file does not exist or is not a JSON object, or a setting is wrong.
    """
    content = _content(path)
    section, breakdown = content.get(COMMS_LOGGER), content.get(BREAKDOWN, False)
    if section is not None and not isinstance(section, dict):
        raise UsageError(f"{COMMS_LOGGER} in {path} must be an object, not {section!r}")
    if not isinstance(breakdown, bool):
        raise UsageError(f"{BREAKDOWN} in {path} must be true or false, not {breakdown!r}")
    if section is not None:  # as in DeepSpeed: the section is enough, whatever its `enabled` says
        yield (f"{COMMS_LOGGER} is on in {path}: DeepSpeed waits for the device after each of its collectives, so they "
               "overlap with nothing. `distprof comms` shows count, bytes, waiting and bandwidth of each without it")
    if breakdown:
        yield (f"{BREAKDOWN} is on in {path}: DeepSpeed waits for the device to print its times. Without it, `distprof "
               "stats` shows the forward, backward and optimizer time of a step, and `distprof comms` its "
               "communication")


def _content(path: Path) -> dict[str, Any]:
    try:
        content = _decoded(path.read_bytes(), path)
    except OSError as error:
        raise UsageError(f"cannot read the DeepSpeed config {path}: {error.strerror}",
                         hint="--config takes the same file as --deepspeed_config") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def _decoded(text: bytes, path: Path) -> Any:
    """Parses JSON, or Hjson (JSON with comments), which DeepSpeed also accepts; hjson is installed with DeepSpeed."""
    try:
        return msgspec.json.decode(text)
    except (UnicodeDecodeError, RecursionError) as error:
        hint = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else None
        raise UsageError(f"{path} is not valid JSON: {error}", hint=hint) from error
    except msgspec.DecodeError as error:
        try:
            return import_module("hjson").loads(text.decode())
        except ImportError:
            hint = "comments need the package hjson: pip install hjson"
        except (ValueError, RecursionError):
            hint = None
        raise UsageError(f"{path} is not valid JSON: {error}", hint=hint) from error
