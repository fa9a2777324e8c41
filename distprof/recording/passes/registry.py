"""The classes of the passes; their names, order and usual lengths are in distprof/contract/passes.py."""

from __future__ import annotations

from distprof.recording.passes.arrivals import ArrivalSteps
from distprof.recording.passes.count import CountSteps
from distprof.recording.passes.execution import ExecutionSteps
from distprof.recording.passes.memory import MemorySteps
from distprof.recording.passes.protocol import Pass
from distprof.recording.passes.sync import SyncSteps
from distprof.recording.passes.time import TimeSteps
from distprof.recording.passes.trace import TraceSteps
from distprof.recording.passes.wait import WaitSteps

PASS_CLASSES: tuple[type[Pass], ...] = (
    WaitSteps, CountSteps, TimeSteps, SyncSteps, ExecutionSteps, TraceSteps, MemorySteps, ArrivalSteps)
"""A new pass is a file beside these, a row here and a row in the contract."""
