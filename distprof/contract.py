"""The run directory, format 1: file names, tables and their columns, all that recording and merging share.

In comes nothing; out go names and types. No torch, no polars, no pyarrow here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

FORMAT = 1
"""The newest run directory format this version reads and the one it writes."""

RUN_JSON = "run.json"
RANK_JSON = "rank.json"
TRACE_JSON = "trace.json.gz"
TRACE_TAR = "trace.tar"
"""What `merge --format perfetto-tar` writes instead."""
STEP_LINES = "steps.ndjson"
"""Steps of a rank that is still recording, a JSON object a line; becomes `steps.parquet` at the end."""
STUCK_JSON = "stuck.json"
"""What a rank was in when it got stuck; distprof/stuck.py says what it holds. Removed when the rank goes on."""
MERGED = "merged"
SUMMARY_JSON = "summary.json"
PARTIAL_SUFFIX = ".partial"
"""Ends the name of a rank folder that is being written; a rank that died leaves it so."""

WAIT_SLICE = "Work.wait"
"""Name of the slices in which a thread waits for a collective."""
PASSES = ("wait", "count", "time", "trace")
PHASES = ("forward", "backward", "recompute")
"""Parts of a step in which modules work; recompute: forward work that activation checkpointing repeats in backward."""
MODEL_PARALLEL = ("pp", "cp", "ep", "tp")
"""Mesh dimensions whose product is mp_size. Everything else is data parallel."""
AXES = ("pp", "dp", "cp", "ep", "tp")
"""Mesh dimensions by their standard names, slowest rank order first."""
QUANTITIES = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops")
"""What `summary.json` gives per GPU and of the model."""
TIMES = {"step_ns": "duration_ns", "before_forward_ns": "before_forward_ns", "fwd_ns": "fwd_ns", "bwd_ns": "bwd_ns",
         "optimizer_ns": "optimizer_ns"}
"""Times in `per_gpu` of `summary.json` -> columns of the steps table."""

SUMMARY_KEYS = (
    "format", "kind", "run_id", "world_size", "mp_size", "dp_size", "topology", "topology_source", "ranks",
    "missing_ranks", "problems", "remarks", "per_gpu", "model", "step", "slowest_rank", "communication", "modules",
    "coverage_ratio", "uncounted_ops", "clock",
)
"""Keys of `summary.json`; docs/run-directory.md says what they are."""
STEP_KEYS = (
    "time_ns", "before_forward_ns", "fwd_ns", "bwd_ns", "optimizer_ns", "samples_per_second", "flops_per_second", "mfu",
    "mfu_basis",
)
"""Keys of `step` in it."""
CLOCK_KEYS = (
    "method", "description", "aligned", "num_hosts", "num_clocks", "uncertainty_ns", "excess_ns", "residual_ns",
    "causality", "ranks", "set_by_ns",
)
"""Keys of `clock` in it."""

Type = Literal["int64", "float64", "bool", "string", "category", "list<int64>"]


def rank_folder(rank: int) -> str:
    """Name of the folder that holds what a rank recorded."""
    return f"rank{rank:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: Type
    """`category` is a dictionary-encoded string."""
    doc: str
    """Meaning, unit and source."""
    nullable: bool = False
    """True where a value may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One parquet file of the run directory."""

    file: str
    doc: str
    columns: tuple[Column, ...]

    def names(self) -> list[str]:
        """Column names in file order."""
        return [column.name for column in self.columns]


def _int(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="int64", doc=doc, nullable=nullable)


def _text(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="category", doc=doc, nullable=nullable)


def _real(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="float64", doc=doc, nullable=nullable)


TAGS = (
    _int("rank", "Global rank of the process, as torch has it."),
    _int("mp_size", "Product of the model-parallel mesh sizes (pp, cp, ep, tp)."),
    _int("dp_size", "Product of the data-parallel mesh sizes; mp_size x dp_size = world size."),
)
"""Every row of every table begins with these."""

_MODULE_PATH = _text(
    "module_path",
    "Path of the module from its root; the root is '', a second root model starts with 'model1:'. "
    "Null: outside of every module.",
    nullable=True,
)
_FLOP_COLUMNS = (
    _int("fwd_macs", "Multiply-accumulates of one step's forward calls, submodules included; count pass.",
         nullable=True),
    _int("fwd_flops", "FLOPs of one step's forward calls (2 per MAC), submodules included; count pass.",
         nullable=True),
    _int("bwd_flops", "FLOPs of one step's backward, submodules included; count pass.", nullable=True),
    _int("recompute_flops", "FLOPs of forward calls repeated in backward (activation checkpointing); count pass.",
         nullable=True),
)

TIME_COLUMNS = (
    _real("fwd_time_ns", "Measured time of the forward calls of a step, submodules included; time pass. Null "
          "where the module was not called.", nullable=True),
    _real("fwd_self_time_ns", "The same without submodules: over all modules it adds up to fwd_time_ns of the root.",
          nullable=True),
    _real("bwd_time_ns", "Measured time in which autograd ran nodes that the module made, and accumulated its "
          "gradients, per step, submodules included, recomputation apart; time pass. Null where no gradient passed.",
          nullable=True),
    _real("bwd_self_time_ns", "The same without submodules: over all modules it adds up to bwd_time_ns of the root.",
          nullable=True),
    _real("recompute_time_ns", "Measured time of forward calls repeated in backward (activation checkpointing), per "
          "step, submodules included; time pass. Null where nothing was repeated.", nullable=True),
    _real("recompute_self_time_ns", "The same without submodules.", nullable=True),
)
"""Latency of a module."""

MODULES = Table(
    file="modules.parquet",
    doc="One row per module, averaged over the steps of the pass a number comes from.",
    columns=(
        *TAGS,
        Column(name="module_path", type="string", doc="Path of the module from its root; the root is ''."),
        _text("class_name", "Class of the module."),
        _int("depth", "Number of modules above this one."),
        _int("params", "Parameters this rank must hold for its model-parallel part, submodules included, shared "
             "ones once; a data-parallel shard counts with its unsharded size."),
        _int("own_params", "The same without submodules."),
        _int("stored_params", "Parameters that lie on this rank, shards as shards, submodules included."),
        _int("trainable_params", "Those of `params` with requires_grad."),
        _int("param_bytes", "Bytes of `stored_params`."),
        _int("buffers", "Elements of buffers on this rank, submodules included."),
        _int("buffer_bytes", "Bytes of `buffers`."),
        _text("dtype", "Element type of most of `params`, like float32.", nullable=True),
        _real("calls", "Forward calls a step, recomputation apart; time pass, else count pass.", nullable=True),
        *_FLOP_COLUMNS,
        *TIME_COLUMNS,
    ),
)

OPS = Table(
    file="ops.parquet",
    doc="One row per (module path, op, input shapes, phase), per step of the count pass.",
    columns=(
        *TAGS,
        _MODULE_PATH,
        _text("op", "Operator, like aten::mm."),
        _text("phase", "forward, backward, recompute or optimizer."),
        _text("shapes", "Shapes of the tensor inputs on this rank, as a JSON list."),
        _text("dtype", "Element type of the first tensor input, like float32.", nullable=True),
        _real("calls", "Calls a step."),
        _real("macs", "Multiply-accumulates a step of contractions (products, convolutions, attention, recurrent)."),
        _real("flops", "FLOPs a step, 2 per MAC."),
        _real("causal_macs", "`macs` without the (query, key) pairs that a causal mask hides."),
        _real("recompute_macs", "Part of `macs`: scores that a fused attention backward computes once more."),
        _real("elements", "Elements a step that an op which is no contraction works on."),
        _real("estimate_flops", "Rough FLOPs a step of FFTs, factorisations and distances; never part of `flops`."),
        _real("io_bytes", "Bytes read and written a step, each tensor of a call once; 0 for views."),
        _real("read_bytes", "Bytes read a step."),
        _real("write_bytes", "Bytes written a step."),
        _text("kind", "contraction, norm, activation, pool, softmax, loss, elementwise, ..., other."),
        Column(name="counted", type="bool", doc="True where it is known what the op does."),
        Column(name="view", type="bool", doc="True where the op returns a view and computes nothing."),
        _text("note", "What the count is based on, where that is not plain from the shapes.", nullable=True),
    ),
)

COLLECTIVES = Table(
    file="collectives.parquet",
    doc="One row per communication op this rank took part in during the trace pass, in the order it was issued.",
    columns=(
        *TAGS,
        _int("step", "Step of the run, from 0."),
        _text("op", "all_reduce, all_gather, reduce_scatter, broadcast, barrier, send, ..."),
        _text("group", "Name of the process group."),
        _text("group_description", "Description of the process group: default_pg, mesh_tp, ..."),
        Column(name="group_ranks", type="list<int64>", doc="Global ranks of the group."),
        _int("sequence", "Number of the collective in its group, from 0 at the start of the trace pass; "
             "point-to-point ops are numbered apart."),
        _int("group_sequence", "Sequence number that torch keeps for the group (gloo counts send and receive too)."),
        _int("num_elements", "Elements of the input on this rank."),
        _int("size_bytes", "Bytes of the input on this rank (of the output for receive)."),
        _text("dtype", "Element type of the first tensor, like float32.", nullable=True),
        _int("peer", "Global rank of the other side of a send or receive, else the root of a rooted op.",
             nullable=True),
        _int("tag", "Tag of a send or receive.", nullable=True),
        Column(name="split_bytes", type="list<int64>", doc="Bytes that go to each rank of the group in an all_to_all.",
               nullable=True),
        Column(name="asynchronous", type="bool", doc="True where the caller did not ask to wait at once."),
        _int("enqueue_ns", "When this rank called the op; ns since the epoch, this rank's clock."),
        _int("start_ns", "When the backend began with it: a thread of gloo took it out of its queue, a kernel of NCCL "
             "began. Null where the timeline does not tell.", nullable=True),
        _int("end_ns", "When the op had completed on this rank. Null where neither timeline nor backend tell.",
             nullable=True),
        _text("timed_by", "What `end_ns` comes from: timeline (exact), or future (a callback, late by the time that "
              "the interpreter was busy with other things).", nullable=True),
        _MODULE_PATH,
        _text("phase", "forward, backward, recompute or optimizer: what the rank was doing. Null: none of them.",
              nullable=True),
    ),
)

STEPS = Table(
    file="steps.parquet",
    doc="One row per step.",
    columns=(
        *TAGS,
        _int("step", "Step of the run, from 0."),
        _text("pass", "wait, count, time or trace: what was switched on."),
        _int("start_ns", "Start; ns since the epoch, this rank's clock."),
        _int("end_ns", "End; ns since the epoch, this rank's clock."),
        _int("duration_ns", "end_ns - start_ns, by a clock that is never set."),
        _int("before_forward_ns", "From the start of the step to the first forward call: data loading and what "
             "else the script does there; time pass.", nullable=True),
        _int("fwd_ns", "Time inside root forward calls; time pass.", nullable=True),
        _int("bwd_ns", "From the first gradient of a root module's output to the end of backward; time pass.",
             nullable=True),
        _int("optimizer_ns", "Time inside optimizer.step(); time pass.", nullable=True),
        _int("forward_calls", "Root forward calls that ended in this step.", nullable=True),
        _int("samples", "Sum over root forward calls of the first dimension of the first tensor input. Null where "
             "no tensor came in or nobody looked (wait pass).", nullable=True),
    ),
)

_EXTERNAL_ID = _int("external_id", "Joins an operator with the kernels it launched, within a rank.", nullable=True)
_CORRELATION = _int("correlation", "Joins a kernel with the call that launched it, within a rank.", nullable=True)
_SEQUENCE_NUMBER = _int("sequence_number", "Joins an operator of forward with its backward, within a rank and thread.",
                        nullable=True)

EVENTS = Table(
    file="events.parquet",
    doc="The timeline of the trace pass as a table, in the order of the trace.",
    columns=(
        *TAGS,
        _text("name", "Name of the event."),
        _text("category", "Category as the profiler gives it: cpu_op, user_annotation, kernel, ...", nullable=True),
        _int("start_ns", "Start; ns since the epoch, this rank's clock."),
        _int("duration_ns", "Duration; null for an instant.", nullable=True),
        _text("process", "Process or device id as the profiler gives it."),
        _text("thread", "Thread or stream id as the profiler gives it."),
        _text("thread_name", "Name of the thread, where it has one.", nullable=True),
        _int("step", "Step in which the event starts; null outside of the recorded steps.", nullable=True),
        _EXTERNAL_ID,
        _CORRELATION,
        _SEQUENCE_NUMBER,
        _int("forward_thread", "Thread on which forward ran, as the profiler numbers threads for itself; 0 for what is "
             "no backward work. A backward operator has the sequence_number of its forward one.", nullable=True),
    ),
)

EVENT_ARGS = (
    (_EXTERNAL_ID, "External id"),
    (_CORRELATION, "correlation"),
    (_SEQUENCE_NUMBER, "Sequence number"),
    (_text("shapes", "Shapes of the inputs, as the profiler writes them.", nullable=True), "Input Dims"),
    (_text("collective", "Collective that the event is, like allreduce.", nullable=True), "Collective name"),
    (_text("group", "Name of the process group of a collective.", nullable=True), "Process Group Name"),
    (_int("group_size", "Ranks of that group.", nullable=True), "Group size"),
    (_int("sequence", "Number of the collective in its group.", nullable=True), "Seq"),
    (_text("comms_id", "Equal on all ranks of a collective, and of no other.", nullable=True), "Comms Id"),
    (_text("dtype", "Element type of a collective.", nullable=True), "dtype"),
    (_int("in_elements", "Elements that go into a collective on this rank.", nullable=True), "In msg nelems"),
    (_int("out_elements", "Elements that come out of it on this rank.", nullable=True), "Out msg nelems"),
)
"""Columns of the merged events that come out of `args`, and the key there."""

MERGED_EVENTS = Table(
    file="events.parquet",
    doc="A directory with a file a rank: the merged timeline as a table, in the order of the rank's trace, without "
    "metadata and arrows.",
    columns=(
        *TAGS,
        _text("name", "Name of the event."),
        _text("category", "Category as the profiler gives it: cpu_op, user_annotation, kernel, ...", nullable=True),
        _text("phase", "Kind of Chrome event: X slice, i instant, C counter, b and e asynchronous, ..."),
        _int("start_ns", "Start on the common clock; ns since the epoch."),
        _int("duration_ns", "Duration; null where there is none.", nullable=True),
        _text("process", "Process or device id as the profiler gives it.", nullable=True),
        _text("thread", "Thread or stream id as the profiler gives it.", nullable=True),
        _text("thread_name", "Name of the thread, where it has one.", nullable=True),
        _int("step", "Step in which the event starts; null outside of the recorded steps.", nullable=True),
        *(column for column, _ in EVENT_ARGS),
    ),
)

RANK_TABLES = (MODULES, OPS, COLLECTIVES, STEPS, EVENTS)

MERGED_MODULES = Table(
    file="modules.parquet",
    doc="One row per (pipeline stage, module path): numbers reduced over ranks.",
    columns=(
        _int("mp_size", "As in every table."),
        _int("dp_size", "As in every table."),
        _int("stage", "Pipeline stage (pp coordinate), 0 without pipeline parallelism."),
        Column(name="module_path", type="string", doc="Path of the module from its root; the root is ''."),
        _text("class_name", "Class of the module."),
        _int("depth", "Number of modules above this one."),
        _int("num_ranks", "Ranks that have the module."),
        *(
            _real(f"{quantity}_{what}", f"{quantity} of a rank of this stage: {what} over the ranks that have the "
                  f"module.", nullable=True)
            for quantity in ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops",
                             *(column.name for column in TIME_COLUMNS))
            for what in ("mean", "min", "max")
        ),
        _int("slowest_rank", "Rank with the largest fwd_time_ns + bwd_time_ns + recompute_time_ns.", nullable=True),
        _real("model_params", "Parameters of the module in the model: the sum over one model-parallel group."),
        _real("model_fwd_flops", "Forward FLOPs of the module in the model, likewise.", nullable=True),
    ),
)

_UNKNOWN_ELSEWHERE = ("group", "group_description", "group_ranks", "sequence", "group_sequence", "num_elements",
                      "size_bytes", "asynchronous", "enqueue_ns", "step")
"""Columns of the collectives that traces of other programs may lack."""

MERGED_COLLECTIVES = Table(
    file="collectives.parquet",
    doc="Rows of all ranks, times on the common clock, with the numbers of the collective they belong to.",
    columns=(
        *(replace(column, doc=column.doc.replace("this rank's clock", "the common clock"),
                  nullable=column.nullable or column.name in _UNKNOWN_ELSEWHERE) for column in COLLECTIVES.columns),
        _text("comms_id", "Id that the backend gives to the collective, equal on all its ranks.", nullable=True),
        _int("collective", "Number of the collective in the run, by its first arrival; a send and its receive "
             "are one."),
        _text("matched_by", "How its rows were found on the ranks: id (of the backend), sequence (of the group), label "
              "(sequences of like ops, aligned), order (the same where only the op is known), peer (send and "
              "receive). Null for a row that nothing tells the group of.", nullable=True),
        _int("num_ranks", "Ranks whose row was found."),
        Column(name="complete", type="bool", doc="True where all ranks of the group are there and agree."),
        _text("mismatch", "What is not as it must be: ranks that never entered, different ops, types or sizes.",
              nullable=True),
        _int("arrival_ns", "When this rank was there: start_ns where all ranks of the collective have one, else "
             "enqueue_ns where all have that, else what it has.", nullable=True),
        _int("arrival_spread_ns", "Last minus first arrival over the ranks of the collective. Null where not all are "
             "there, for one rank, and for send and receive.", nullable=True),
        _int("late_rank", "The rank that arrived last. Null where the spread is.", nullable=True),
        _int("end_spread_ns", "Last minus first end over its ranks. Null where one is not known.", nullable=True),
        _int("wait_ns", "Time from this rank's arrival to the last one's, but not more than it was in the collective. "
             "Null where arrivals or this rank's end are not known, or the op does not wait for all.", nullable=True),
        _int("transfer_ns", "The rest of the time that this rank was in the collective.", nullable=True),
        _int("clock_free_wait_ns", "Time in the collective beyond that of the rank which was shortest in it: waiting, "
             "by durations alone.", nullable=True),
        _int("clock_free_transfer_ns", "Time in it of the rank which was shortest in it.", nullable=True),
        Column(name="unsure", type="bool", doc="True where the spread is within what the clocks of its ranks may be "
               "wrong, or these were never compared: who came last is not known. Null where the spread is.",
               nullable=True),
        Column(name="disagrees", type="bool", doc="True where wait_ns and clock_free_wait_ns are further apart than "
               "the uncertainty of the clocks and clock_free_transfer_ns explain.", nullable=True),
        _real("algbw", "Algorithm bandwidth, as nccl-tests define it: size / time, from the last arrival to the last "
              "end, or clock_free_transfer_ns where clocks were not compared; bytes a second. Of a send: until it was "
              "received. Null for one rank, for no bytes, for an end that is not known, and for ops with a root.",
              nullable=True),
        _real("busbw", "Bus bandwidth, as nccl-tests define it: algbw times a factor of op and ranks; bytes a second.",
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
