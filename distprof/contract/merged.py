"""What a merge writes: its tables, column by column (meaning, unit and source), and the keys of `summary.json`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from distprof.contract.tables import (
    COLLECTIVES,
    COMPILATIONS,
    CORRELATION,
    EXTERNAL_ID,
    SEQUENCE_NUMBER,
    STEPS,
    TAGS,
    TIME_COLUMNS,
    WAITS,
    Column,
    Table,
    int64,
    real,
    text,
)

EVENT_ARGS = (
    (EXTERNAL_ID, "External id"),
    (CORRELATION, "correlation"),
    (SEQUENCE_NUMBER, "Sequence number"),
    (text("shapes", "Shapes of the inputs, as the profiler writes them.", nullable=True), "Input Dims"),
    (text("collective", "Collective that the event is, like allreduce.", nullable=True), "Collective name"),
    (text("group", "Name of the process group of a collective.", nullable=True), "Process Group Name"),
    (int64("group_size", "Ranks of that group.", nullable=True), "Group size"),
    (int64("sequence", "Index of the collective within its group.", nullable=True), "Seq"),
    (text("comms_id", "Same on all ranks of a collective, and on no other.", nullable=True), "Comms Id"),
    (text("dtype", "Element type of a collective.", nullable=True), "dtype"),
    (int64("in_elements", "Number of input elements of a collective on this rank.", nullable=True), "In msg nelems"),
    (int64("out_elements", "Number of its output elements on this rank.", nullable=True), "Out msg nelems"),
)
"""Columns of the merged events that come from `args` of a trace event, with their keys there."""

MERGED_EVENTS = Table(
    file="events.parquet",
    doc="A directory with one file per rank: the merged timeline as a table, in the order of the rank's trace, "
        "without metadata and arrows.",
    columns=(
        *TAGS,
        text("name", "Name of the event."),
        text("category", "Category, as the profiler gives it: cpu_op, user_annotation, kernel, ...", nullable=True),
        text("phase", "Kind of Chrome event: X slice, i instant, C counter, b and e asynchronous, ..."),
        int64("start_ns", "Start on the common clock; ns since the epoch."),
        int64("duration_ns", "Duration; null if there is none.", nullable=True),
        text("process", "Process or device id, as the profiler gives it.", nullable=True),
        text("thread", "Thread or stream id, as the profiler gives it.", nullable=True),
        text("thread_name", "Name of the thread, if it has one.", nullable=True),
        int64("step", "Step in which the event starts; null outside the recorded steps.", nullable=True),
        *(column for column, _ in EVENT_ARGS),
    ),
)

MERGED_MODULES = Table(
    file="modules.parquet",
    doc="One row per (pipeline stage, module path), with numbers reduced over ranks.",
    columns=(
        int64("mp_size", "As in every table."),
        int64("dp_size", "As in every table."),
        int64("stage", "Pipeline stage (pp coordinate), 0 without pipeline parallelism."),
        Column(name="module_path", type="string", doc="Path of the module from the root; the root itself is ''."),
        text("class_name", "Class of the module."),
        int64("depth", "Depth: number of modules above this one."),
        int64("num_ranks", "Ranks that have the module."),
        *(
            real(f"{quantity}_{what}", f"{quantity} of a rank of this stage: {what} over the ranks that have the "
                  f"module.", nullable=True)
            for quantity in ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops",
                             *(column.name for column in TIME_COLUMNS))
            for what in ("mean", "min", "max")
        ),
        int64("slowest_rank", "Rank with the largest fwd_time_ns + bwd_time_ns + recompute_time_ns.", nullable=True),
        real("model_params", "Parameters of the module in the model: the sum over one model-parallel group.",
             nullable=True),
        real("model_fwd_flops", "Forward FLOPs of the module in the model, summed in the same way.", nullable=True),
    ),
)

_UNKNOWN_ELSEWHERE = ("group", "group_description", "group_ranks", "group_size", "sequence", "group_sequence",
                      "num_elements", "size_bytes", "asynchronous", "enqueue_ns", "step")
"""Columns of collectives that traces of other programs may lack."""

MERGED_COLLECTIVES = Table(
    file="collectives.parquet",
    doc="Rows of all ranks, with times on the common clock and the collective that each row belongs to.",
    columns=(
        *(replace(column, doc=column.doc.replace("this rank's clock", "the common clock"),
                  nullable=column.nullable or column.name in _UNKNOWN_ELSEWHERE) for column in COLLECTIVES.columns),
        text("comms_id", "Id that the backend assigns to the collective, the same on all its ranks.", nullable=True),
        int64("collective", "Number of the collective in the run, ordered by first arrival; a send and its receive "
                            "count as one."),
        text("matched_by", "How its rows on the ranks were matched: id (of the backend), sequence (number in the "
                           "group), label (aligned sequences of similar ops), order (the same, knowing only the op), "
                           "peer (send and receive). Null if the group of a row is unknown.", nullable=True),
        int64("num_ranks", "Ranks with a matching row."),
        Column(name="complete", type="bool", doc="True if all ranks of the group are present and agree."),
        text("mismatch", "What does not match: ranks that never entered, different ops, types or sizes.",
              nullable=True),
        int64("arrival_ns", "When this rank arrived: start_ns if all ranks of the collective have it, else enqueue_ns "
                            "if all have that, else whichever it has.", nullable=True),
        int64("arrival_spread_ns", "Last minus first arrival over the ranks of the collective. Null if some ranks are "
                                   "missing, for a single rank, and for send and receive.", nullable=True),
        int64("late_rank", "The rank that arrived last. Null if the spread is null.", nullable=True),
        int64("end_spread_ns", "Last minus first end over its ranks. Null if any end is unknown.", nullable=True),
        int64("wait_ns", "Time from this rank's arrival to the last arrival, at most the time this rank spent in the "
                         "collective. Null if arrivals or this rank's end are unknown, or if the op does not wait for "
                         "all ranks.", nullable=True),
        int64("transfer_ns", "The rest of this rank's time in the collective.", nullable=True),
        int64("clock_free_wait_ns", "Time in the collective beyond that of the rank with the shortest time in it: "
                                    "waiting, estimated only from durations.", nullable=True),
        int64("clock_free_transfer_ns", "Shortest time that any rank spent in it.", nullable=True),
        Column(name="unsure", type="bool", doc="True if the spread is within the uncertainty of its ranks' clocks, or "
                                               "if the clocks were never compared: which rank came last is unknown. "
                                               "Null if the spread is null.",
               nullable=True),
        Column(name="disagrees", type="bool", doc="True if wait_ns and clock_free_wait_ns differ by more than the "
                                                  "clock uncertainty and clock_free_transfer_ns "
                                                  "explain.", nullable=True),
        real("algbw", "Algorithm bandwidth as defined by nccl-tests: size / time in bytes per second, where the time "
                      "runs from the last arrival to the last end, or is clock_free_transfer_ns if clocks were not "
                      "compared. For a send: until it was received. Null for a single rank, for no bytes, for an "
                      "unknown end, and for ops with a root.",
              nullable=True),
        real("busbw", "Bus bandwidth as defined by nccl-tests: algbw times a factor that depends on op and number of "
                      "ranks; bytes per second.",
              nullable=True),
        Column(name="between_hosts", type="bool", doc="True if its ranks are on several hosts. Null if that is "
                                                      "unknown.", nullable=True),
    ),
)

MERGED_STEPS = Table(
    file="steps.parquet",
    doc="Rows of all ranks, with times on the common clock.",
    columns=tuple(
        replace(column, doc=column.doc.replace("this rank's clock", "the common clock")) for column in STEPS.columns),
)

MERGED_OPERATORS = Table(
    file="operators.parquet",
    doc="A directory with one file per rank: operators and device work, one row for all calls that share operator, "
        "shapes, types, module, phase, step, stream and launcher. Covers the whole timeline, even where options "
        "selected events.",
    columns=(
        *TAGS,
        text("op", "Name of the operator, call, mark or kernel."),
        text("type", "operator, annotation, runtime, kernel, memcpy or memset."),
        text("shapes", "Shapes of the inputs, as the profiler writes them.", nullable=True),
        text("dtypes", "Types of the inputs, in the same form.", nullable=True),
        text("module_path", "Module that was being called; in backward, the module whose forward call is "
                            "differentiated.",
             nullable=True),
        text("class_name", "Its class.", nullable=True),
        text("phase", "forward, backward, recompute, optimizer, evaluation or data.", nullable=True),
        int64("step", "Step in which the calls start or were launched; null outside the recorded steps.",
              nullable=True),
        text("stream", "Stream of a device, as the profiler numbers it; `7 of device 1` where a rank uses several.",
             nullable=True),
        text("stack", "Always null: a merge has no stacks.", nullable=True),
        text("launched_by", "Operator that launched the device work, or the call that launched its graph.",
             nullable=True),
        int64("calls", "Number of calls. An operator that redispatches to itself with the same tensors counts once."),
        int64("host_ns", "Total host time, including nested calls."),
        int64("self_host_ns", "Total host time, excluding nested calls."),
        int64("duration_ns", "Total duration of calls; of operators of a replayed graph, their device time."),
        int64("device_ns", "Total device time launched, including nested calls."),
        int64("self_device_ns", "Total device time that it launched itself."),
        real("squared_ns", "Sum of squared call durations."),
        int64("min_ns", "Shortest call."),
        int64("max_ns", "Longest call."),
        int64("self_allocated_bytes", "Memory that the calls allocated themselves; null if not recorded.",
              nullable=True),
        int64("allocated_bytes", "The same, including nested calls.", nullable=True),
        int64("self_freed_bytes", "Memory that the calls freed themselves; null if not recorded.", nullable=True),
        int64("freed_bytes", "The same, including nested calls.", nullable=True),
        int64("flops", "FLOPs from the shapes in the trace. Null if the shapes do not determine them, and in runs "
                       "with a count pass, which has the FLOPs in `ops.parquet` of each rank.", nullable=True),
        int64("causal_flops", "The same without the (query, key) pairs that a causal mask hides.", nullable=True),
        int64("bytes", "Bytes read and written, from the same source.", nullable=True),
    ),
)
COPIED = (WAITS, COMPILATIONS)
"""Tables of ranks that a merge concatenates unchanged into one file, if any rank has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakUsed:
    """A dense peak rate on which MFU is based; if --peak gave it, only the rate is known."""

    flops_per_second: float
    device: str | None = None
    dtype: str | None = None
    source: str | None = None
    year: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MfuBasis:
    """What MFU is based on, or why there is none."""

    code: Literal["published", "given", "no_step", "no_device", "no_dtype", "no_peak", "uncounted"]
    """no_step: there is no step of the count pass or of the time pass; no_device, no_dtype: `rank` did not record it;
    no_peak: no peak is published for `device` in `dtype`; uncounted: some timed modules were not counted."""
    peaks: tuple[PeakUsed, ...] = ()
    rank: int | None = None
    device: str | None = None
    dtype: str | None = None


QUANTITIES = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops")
"""Quantities in both `per_gpu` and `model` of `summary.json`."""
MODEL_PARAMS = ("unique_params", "active_params")
"""Quantities only in `model` of `summary.json`."""
TIMES = {"step_ns": "duration_ns", "before_forward_ns": "before_forward_ns", "fwd_ns": "fwd_ns", "bwd_ns": "bwd_ns",
         "optimizer_ns": "optimizer_ns"}
"""Times in `per_gpu` of `summary.json` -> columns of the steps table."""

SUMMARY_KEYS = (
    "format", "kind", "run_id", "world_size", "mp_size", "dp_size", "topology", "topology_source", "topology_certain",
    "ranks", "missing_ranks", "joined_with", "problems", "remarks", "per_gpu", "model", "step", "evaluation",
    "slowest_rank", "passes", "steps", "communication", "modules", "coverage_ratio", "uncounted_ops", "clock",
)
"""Keys of `summary.json`; docs/run-directory.md explains them."""
STEP_KEYS = (
    "time_ns", "low_ns", "high_ns", "num_steps", "passes", "measured_ns", "before_forward_ns", "fwd_ns", "bwd_ns",
    "optimizer_ns", "samples", "samples_per_second",
    "flops_per_second", "mfu", "mfu_basis", "found",
)
"""Keys of `step` in `summary.json`."""
CLOCK_KEYS = (
    "method", "reason", "num_samples", "num_collectives", "aligned", "num_hosts", "num_clocks", "uncertainty_ns",
    "excess_ns", "residual_ns", "causality", "ranks", "set_by_ns",
)
"""Keys of `clock` in `summary.json`."""
