"""The tables that a merge writes, column by column: meaning, unit and source."""

from __future__ import annotations

from dataclasses import replace

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
    (int64("sequence", "Number of the collective in its group.", nullable=True), "Seq"),
    (text("comms_id", "Equal on all ranks of a collective, and of no other.", nullable=True), "Comms Id"),
    (text("dtype", "Element type of a collective.", nullable=True), "dtype"),
    (int64("in_elements", "Elements that go into a collective on this rank.", nullable=True), "In msg nelems"),
    (int64("out_elements", "Elements that come out of it on this rank.", nullable=True), "Out msg nelems"),
)
"""Columns of the merged events that are taken from `args`, and the key there."""

MERGED_EVENTS = Table(
    file="events.parquet",
    doc="A directory with a file a rank: the merged timeline as a table, in the order of the rank's trace, without "
    "metadata and arrows.",
    columns=(
        *TAGS,
        text("name", "Name of the event."),
        text("category", "Category as the profiler gives it: cpu_op, user_annotation, kernel, ...", nullable=True),
        text("phase", "Kind of Chrome event: X slice, i instant, C counter, b and e asynchronous, ..."),
        int64("start_ns", "Start on the common clock; ns since the epoch."),
        int64("duration_ns", "Duration; null where there is none.", nullable=True),
        text("process", "Process or device id as the profiler gives it.", nullable=True),
        text("thread", "Thread or stream id as the profiler gives it.", nullable=True),
        text("thread_name", "Name of the thread, where it has one.", nullable=True),
        int64("step", "Step in which the event starts; null outside of the recorded steps.", nullable=True),
        *(column for column, _ in EVENT_ARGS),
    ),
)

MERGED_MODULES = Table(
    file="modules.parquet",
    doc="One row per (pipeline stage, module path): numbers reduced over ranks.",
    columns=(
        int64("mp_size", "As in every table."),
        int64("dp_size", "As in every table."),
        int64("stage", "Pipeline stage (pp coordinate), 0 without pipeline parallelism."),
        Column(name="module_path", type="string", doc="Path of the module from its root; the root is ''."),
        text("class_name", "Class of the module."),
        int64("depth", "Number of modules above this one."),
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
        real("model_fwd_flops", "Forward FLOPs of the module in the model, likewise.", nullable=True),
    ),
)

_UNKNOWN_ELSEWHERE = ("group", "group_description", "group_ranks", "group_size", "sequence", "group_sequence",
                      "num_elements", "size_bytes", "asynchronous", "enqueue_ns", "step")
"""Columns of the collectives that traces of other programs may lack."""

MERGED_COLLECTIVES = Table(
    file="collectives.parquet",
    doc="Rows of all ranks, times on the common clock, with the numbers of the collective they belong to.",
    columns=(
        *(replace(column, doc=column.doc.replace("this rank's clock", "the common clock"),
                  nullable=column.nullable or column.name in _UNKNOWN_ELSEWHERE) for column in COLLECTIVES.columns),
        text("comms_id", "Id that the backend gives to the collective, equal on all its ranks.", nullable=True),
        int64("collective", "Number of the collective in the run, by its first arrival; a send and its receive "
             "are one."),
        text("matched_by", "How its rows were found on the ranks: id (of the backend), sequence (of the group), label "
              "(sequences of like ops, aligned), order (the same where only the op is known), peer (send and "
              "receive). Null where the group of a row is unknown.", nullable=True),
        int64("num_ranks", "Ranks whose row was found."),
        Column(name="complete", type="bool", doc="True where all ranks of the group are there and agree."),
        text("mismatch", "What is not as it must be: ranks that never entered, different ops, types or sizes.",
              nullable=True),
        int64("arrival_ns", "When this rank was there: start_ns where all ranks of the collective have one, else "
             "enqueue_ns where all have that, else what it has.", nullable=True),
        int64("arrival_spread_ns", "Last minus first arrival over the ranks of the collective. Null where not all are "
             "there, for one rank, and for send and receive.", nullable=True),
        int64("late_rank", "The rank that arrived last. Null where the spread is.", nullable=True),
        int64("end_spread_ns", "Last minus first end over its ranks. Null where one is not known.", nullable=True),
        int64("wait_ns", "Time from this rank's arrival to the last one's, but not more than it was in the collective. "
             "Null where arrivals or this rank's end are not known, or the op does not wait for all.", nullable=True),
        int64("transfer_ns", "The rest of the time that this rank was in the collective.", nullable=True),
        int64("clock_free_wait_ns", "Time in the collective beyond that of the rank which was shortest in it: waiting, "
             "by durations alone.", nullable=True),
        int64("clock_free_transfer_ns", "Time in it of the rank which was shortest in it.", nullable=True),
        Column(name="unsure", type="bool", doc="True where the spread is within what the clocks of its ranks may be "
               "wrong, or these were never compared: who came last is not known. Null where the spread is.",
               nullable=True),
        Column(name="disagrees", type="bool", doc="True where wait_ns and clock_free_wait_ns are further apart than "
               "the uncertainty of the clocks and clock_free_transfer_ns explain.", nullable=True),
        real("algbw", "Algorithm bandwidth, as nccl-tests define it: size / time, from the last arrival to the last "
              "end, or clock_free_transfer_ns where clocks were not compared; bytes a second. Of a send: until it was "
              "received. Null for one rank, for no bytes, for an end that is not known, and for ops with a root.",
              nullable=True),
        real("busbw", "Bus bandwidth, as nccl-tests define it: algbw times a factor of op and ranks; bytes a second.",
              nullable=True),
        Column(name="between_hosts", type="bool", doc="True where its ranks are on several hosts. Null where "
               "that is not known.", nullable=True),
    ),
)

MERGED_STEPS = Table(
    file="steps.parquet",
    doc="Rows of all ranks, times on the common clock.",
    columns=tuple(
        replace(column, doc=column.doc.replace("this rank's clock", "the common clock")) for column in STEPS.columns),
)

MERGED_OPERATORS = Table(
    file="operators.parquet",
    doc="A directory with a file a rank: operators and what ran on devices, a row for all calls that share operator, "
    "shapes, types, module, phase, step, stream and launcher. Of the whole timeline, also where options chose events.",
    columns=(
        *TAGS,
        text("op", "Name of the operator, call, mark or kernel."),
        text("type", "operator, annotation, runtime, kernel, memcpy or memset."),
        text("shapes", "Shapes of the inputs, as the profiler writes them.", nullable=True),
        text("dtypes", "Types of the inputs, likewise.", nullable=True),
        text("module_path", "Module that was being called; in backward, the one whose forward call is undone.",
             nullable=True),
        text("class_name", "Its class.", nullable=True),
        text("phase", "forward, backward, recompute, optimizer, evaluation or data.", nullable=True),
        int64("step", "Step in which the calls start, or were launched; null outside of the recorded steps.",
              nullable=True),
        text("stream", "Stream of a device, numbered.", nullable=True),
        text("stack", "Null: a merge has no stacks.", nullable=True),
        text("launched_by", "Operator that launched what ran on a device.", nullable=True),
        int64("calls", "Number of calls. An operator that passes on to itself with the same tensors is one."),
        int64("host_ns", "Time on the host, with what lies inside; the sum over calls."),
        int64("self_host_ns", "Time on the host, without what lies inside."),
        int64("device_ns", "Time of what it launched on a device, with what lies inside."),
        int64("self_device_ns", "Time of what it launched on a device itself."),
        real("squared_ns", "Sum of the squares of the calls' durations."),
        int64("min_ns", "Shortest call."),
        int64("max_ns", "Longest call."),
        int64("self_allocated_bytes", "Memory that the calls allocated themselves; null where it was not recorded.",
              nullable=True),
        int64("allocated_bytes", "Also of what lies inside.", nullable=True),
        int64("self_freed_bytes", "Memory that they freed, likewise.", nullable=True),
        int64("freed_bytes", "Also of what lies inside.", nullable=True),
        int64("flops", "FLOPs from the shapes in the trace; null where they do not tell, and in runs with a count "
              "pass, whose FLOPs are in `ops.parquet` of the ranks.", nullable=True),
        int64("bytes", "Bytes read and written, likewise.", nullable=True),
    ),
)
COPIED = (WAITS, COMPILATIONS)
"""Tables of the ranks that a merge has as they are, in one file, where a rank has one."""
