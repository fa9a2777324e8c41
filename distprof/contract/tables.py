"""Descriptions of tables of the run directory, and the tables that ranks write: meaning, unit and source of columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from distprof.contract.mesh import MODEL_PARALLEL
from distprof.contract.passes import PASS_NAMES, PASSES

TableRow = dict[str, Any]
"""One row of a table: column -> value; missing columns are null."""
Type = Literal["int64", "float64", "bool", "string", "category", "list<int64>"]
MOST_COUNT, MOST_WORK, MOST_SPAN_NS, MOST_TIME_NS = 2**50, 2**60, 2**53, 2**62
"""Larger values are taken for damage: counts of elements or bytes, FLOPs of a step, durations (104 days) and times (in
the year 2116). Sums of many such counts and durations fit into 64 bits."""
MOST_STEPS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: Type
    """`category` is a dictionary-encoded string."""
    doc: str
    """Meaning, unit and source."""
    nullable: bool = False
    """True if values may be unknown."""
    least: float = 0
    """Smaller numbers are taken for damage."""
    most: float = MOST_COUNT
    """Larger numbers are taken for damage."""
    is_time: bool = False
    """True for times since the epoch; those of one table are close to each other."""
    among: tuple[str, ...] = ()
    """Allowed texts; if empty, any text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One parquet file of the run directory."""

    file: str
    doc: str
    columns: tuple[Column, ...]

    def names(self) -> list[str]:
        """Column names in file order."""
        return [column.name for column in self.columns]

    def only(self, *names: str) -> Table:
        """Returns the table with only these columns, in file order."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in names))


def int64(name: str, doc: str, *, nullable: bool = False, least: int = 0, most: int = MOST_COUNT) -> Column:
    return Column(name=name, type="int64", doc=doc, nullable=nullable, least=least, most=most)


def number(name: str, doc: str, *, nullable: bool = False) -> Column:
    """Returns a column for an id or a hash, which may be any number."""
    return int64(name, doc, nullable=nullable, least=-(2**63), most=2**63 - 1)


def step(doc: str, *, nullable: bool = False) -> Column:
    return int64("step", doc, nullable=nullable, most=MOST_STEPS)


def work(name: str, doc: str, *, nullable: bool = False) -> Column:
    """Returns a column for FLOPs or multiply-accumulates of a step."""
    return int64(name, doc, nullable=nullable, most=MOST_WORK)


def time(name: str, doc: str, *, nullable: bool = False) -> Column:
    """Returns a column for a time in ns since the epoch."""
    return replace(int64(name, doc, nullable=nullable, most=MOST_TIME_NS), is_time=True)


def span(name: str, doc: str, *, nullable: bool = False) -> Column:
    """Returns a column for a duration in ns; measurements of clocks and profilers may be slightly negative."""
    return int64(name, doc, nullable=nullable, least=-MOST_SPAN_NS, most=MOST_SPAN_NS)


def text(name: str, doc: str, *, nullable: bool = False, among: tuple[str, ...] = ()) -> Column:
    return Column(name=name, type="category", doc=doc, nullable=nullable, among=among)


def real(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="float64", doc=doc, nullable=nullable, most=MOST_WORK)


def spent(name: str, doc: str, *, nullable: bool = False) -> Column:
    """Returns a column for a mean duration in ns."""
    return replace(real(name, doc, nullable=nullable), least=-MOST_SPAN_NS, most=MOST_SPAN_NS)


WAIT_SLICE = "Work.wait"
"""Name of the slices in which a thread waits for a collective."""
CLOSURE_SLICE = "Optimizer.closure"
"""Name of the slices in which an optimizer runs its closure."""
EVALUATION = "evaluation"
"""Phase of root forward calls without gradient that only some steps of a training job have, and of whatever the script
marks as evaluation."""
EVALUATION_SLICE = "Evaluation.forward"
"""Name of the slices around root forward calls of evaluation."""
COMPILE_SLICE_END = " (dynamo_timed)"
"""Suffix of the names of torch.compile's own slices."""
PHASES = ("forward", "backward", "recompute")
"""Phases of a step in which modules work; recompute: forward work that activation checkpointing repeats in backward."""
STEP_PHASES = (*PHASES, "optimizer", EVALUATION)
"""All phases of a step."""
TAGS = (
    int64("rank", "Global rank of the process, as in torch."),
    int64("mp_size", f"Product of the model-parallel mesh sizes ({', '.join(MODEL_PARALLEL)})."),
    int64("dp_size", "Product of the data-parallel mesh sizes; mp_size x dp_size = world size."),
)
"""The first columns of every table."""

_MODULE_PATH = text(
    "module_path",
    "Path of the module from the root; the root itself is '', and paths in a second root model start with 'model1:'. "
    "Null: outside all modules.",
    nullable=True,
)
TIME_COLUMNS = (
    spent("fwd_time_ns", "Measured forward time per step, including submodules (time pass). Null if the module was "
                         "not called.", nullable=True),
    spent("fwd_self_time_ns", "The same, excluding submodules: summed over all modules, it equals fwd_time_ns of the "
                              "root.",
          nullable=True),
    spent("bwd_time_ns", "Measured time per step in which autograd ran nodes created by the module and accumulated "
                         "its gradients, including submodules, excluding recomputation (time pass). Null if no "
                         "gradient flowed through it.",
          nullable=True),
    spent("bwd_self_time_ns", "The same, excluding submodules: summed over all modules, it equals bwd_time_ns of the "
                              "root.",
          nullable=True),
    spent("recompute_time_ns", "Measured time per step of forward calls repeated during backward (activation "
                               "checkpointing), including submodules (time pass). Null if nothing was "
                               "repeated.", nullable=True),
    spent("recompute_self_time_ns", "The same, excluding submodules.", nullable=True),
)
"""Columns for the times of a module."""

MODULES = Table(
    file="modules.parquet",
    doc="One row per module. Each number is averaged over the steps of the pass it comes from.",
    columns=(
        *TAGS,
        Column(name="module_path", type="string", doc="Path of the module from the root; the root itself is ''."),
        text("class_name", "Class of the module."),
        int64("depth", "Depth: number of modules above this one."),
        int64("params", "Parameters that this rank needs for its model-parallel part, including submodules; shared "
                        "ones count once, and a data-parallel shard counts with its unsharded size. Null here and in "
                        "the next six columns if the script had dropped the module before distprof inspected "
                        "it.", nullable=True),
        int64("own_params", "The same, excluding submodules.", nullable=True),
        int64("stored_params", "Parameters stored on this rank (shards as shards), including submodules.",
              nullable=True),
        int64("trainable_params", "Those of `params` with requires_grad.", nullable=True),
        int64("param_bytes", "Bytes of `stored_params`.", nullable=True),
        int64("buffers", "Elements of buffers on this rank, including submodules.", nullable=True),
        int64("buffer_bytes", "Bytes of `buffers`.", nullable=True),
        text("dtype", "Element type of most of `params`, like float32.", nullable=True),
        real("calls", "Forward calls per step, excluding recomputation (time pass, else count pass).", nullable=True),
        work("fwd_macs", "Multiply-accumulates of one step's forward calls, including submodules (count pass). Null "
                         "here and in the next four columns for a module that first appeared after the "
                         "count pass.", nullable=True),
        work("fwd_flops", "FLOPs of one step's forward calls (2 per MAC), including submodules (count pass).",
             nullable=True),
        work("bwd_flops", "FLOPs of one step's backward, including submodules (count pass).", nullable=True),
        work("recompute_flops", "FLOPs of forward calls repeated during backward (activation checkpointing; count "
                                "pass).",
             nullable=True),
        work("evaluation_flops", "FLOPs of one step's evaluation, not included in the other columns (count "
                                 "pass).", nullable=True),
        *TIME_COLUMNS,
    ),
)

PARAMETERS = Table(
    file="parameters.parquet",
    doc="One row per parameter on this rank (a shared one once). Together, the tables of all ranks show how the model "
        "is divided.",
    columns=(
        *TAGS,
        Column(name="module_path", type="string", doc="Path of the module that owns it; the root is ''."),
        Column(name="name", type="string", doc="Name in that module: weight, bias, ..."),
        text("shape", "Shape on this rank as a JSON list: the shape before flattening if FSDP flattened it, and the "
                      "global shape of a DTensor."),
        text("dtype", "Element type, like float32."),
        int64("params", "Elements that the rank needs for its model-parallel part, as in the table of modules."),
        int64("stored_params", "Elements stored on this rank."),
        int64("whole_params", "Elements on all ranks of the pipeline stage together. Null for a plain tensor, which "
                              "may be one part of a tensor that is divided over ranks.", nullable=True),
        Column(name="trainable", type="bool", doc="True if it is trained (requires_grad)."),
        number("checksum", "Hash of up to 4,096 of its values after the first pass; the same on ranks that hold the "
                           "same values. Null where it would be meaningless: for FSDP and DTensor shards, and if all "
                           "values are equal.",
              nullable=True),
        real("active_ratio", "Experts per token / number of experts, for parameters of routed experts. Null for other "
                             "parameters and if the model does not state it.", nullable=True),
    ),
)

OPS = Table(
    file="ops.parquet",
    doc="One row per (module path, op, input shapes, phase), per step of the count pass.",
    columns=(
        *TAGS,
        _MODULE_PATH,
        text("op", "Operator, like aten::mm."),
        text("phase", "forward, backward, recompute, optimizer, or evaluation: root forward calls without gradient "
                      "that only some steps of a training job have, and whatever the script marks as such; totals "
                      "exclude it.",
             among=STEP_PHASES),
        text("shapes", "Shapes of the input tensors on this rank, as a JSON list."),
        text("dtype", "Element type of the first tensor input, like float32.", nullable=True),
        real("calls", "Calls per step."),
        real("macs", "Multiply-accumulates per step of contractions (products, convolutions, attention, recurrent)."),
        real("flops", "FLOPs per step, 2 per MAC."),
        real("causal_macs", "`macs` excluding the (query, key) pairs that a causal mask hides."),
        real("recompute_macs", "Part of `macs`: scores that a fused attention backward recomputes."),
        real("elements", "Elements processed per step, for ops other than contractions."),
        real("estimate_flops", "Rough FLOPs per step of FFTs, factorisations and distances; never part of `flops`."),
        real("io_bytes", "Bytes read and written per step, each tensor once per call; 0 for views."),
        real("read_bytes", "Bytes read per step."),
        real("write_bytes", "Bytes written per step."),
        text("kind", "contraction, norm, activation, pool, softmax, loss, elementwise, ..., other."),
        Column(name="counted", type="bool", doc="True if distprof knows what the op does."),
        Column(name="view", type="bool", doc="True if the op returns a view and computes nothing."),
        text("note", "What the count is based on, if not on shapes alone.", nullable=True),
    ),
)

TENSORS = Table(
    file="tensors.parquet",
    doc="One row per tensor that the rank held at the start of the memory pass, before each optimizer step, or at the "
        "end of each step. It adds what the timeline of the pass does not show about an allocation.",
    columns=(
        *TAGS,
        time("time_ns", "When it was observed; ns since the epoch, this rank's clock."),
        text("device", "cpu, cuda:0, ..."),
        number("address", "Address of its storage."),
        int64("size_bytes", "Bytes of its storage."),
        text("category", "parameter, buffer, gradient, optimizer_state or input (of a root forward call).",
             among=("parameter", "buffer", "gradient", "optimizer_state", "input")),
        _MODULE_PATH,
        Column(name="name", type="string", doc="Name in that module, like weight; for optimizer state, like "
                                               "weight.exp_avg.",
               nullable=True),
        text("shape", "Shape on this rank as a JSON list."),
        text("dtype", "Element type, like float32."),
    ),
)

USES = Table(
    file="uses.parquet",
    doc="One row per allocation of the memory pass: the last operator that used it, as far as operators show.",
    columns=(
        *TAGS,
        text("device", "cpu, cuda:0, ..."),
        number("address", "Its address."),
        time("made_ns", "When it was allocated; ns since the epoch, this rank's clock."),
        time("last_used_ns", "End of the last operator that took it as an input or created it."),
        text("used_by", "That operator, as called by the script or autograd.", nullable=True),
    ),
)

COLLECTIVES = Table(
    file="collectives.parquet",
    doc="One row per communication op this rank took part in during the trace and arrivals passes, in the order it was "
        "issued.",
    columns=(
        *TAGS,
        step("Step of the run, from 0."),
        text("op", "all_reduce, all_gather, reduce_scatter, broadcast, barrier, send, ..."),
        text("group", "Name of the process group."),
        text("group_description", "Description of the process group: default_pg, mesh_tp, ..."),
        text("group_ranks", "Global ranks of the group, in its order: `0-3`, `0, 2, 5-7`, `0-24 by 8`."),
        int64("group_size", "Number of ranks in the group."),
        int64("sequence", "Index of the collective within its group, from 0 at the start of the trace pass (or of the "
                          "arrivals pass if there is no trace pass); point-to-point ops are numbered separately."),
        number("group_sequence", "Torch's sequence number in the group (gloo counts send and receive too)."),
        int64("num_elements", "Elements of the input on this rank."),
        int64("size_bytes", "Bytes of the input on this rank (of the output for receive)."),
        text("dtype", "Element type of the first tensor, like float32.", nullable=True),
        int64("peer", "Global rank of the peer of a send or receive, or the root of a rooted op.",
             nullable=True),
        number("tag", "Tag of a send or receive.", nullable=True),
        Column(name="split_bytes", type="list<int64>", doc="Bytes that go to each rank of the group in an all_to_all.",
               nullable=True),
        Column(name="asynchronous", type="bool", doc="True if the call was asynchronous (async_op)."),
        time("enqueue_ns", "When this rank called the op; ns since the epoch, this rank's clock."),
        time("start_ns", "When the backend started it: a gloo thread took it off its queue, or an NCCL kernel "
                         "started. For data on a device, if the timeline does not show it: when the stream reached the "
                         "op. Null if unknown.", nullable=True),
        time("end_ns", "When the op completed on this rank. Null if neither the timeline, the backend nor a wait "
                       "shows it.", nullable=True),
        text("timed_by", "Source of `end_ns`: timeline (exact); future (a callback, late by however long the "
                         "interpreter was busy); or wait (`wait_end_ns`, if earlier than the callback or if there was "
                         "none; for data on a device, when its stream continued after the wait).", nullable=True,
             among=("timeline", "future", "wait")),
        time("wait_start_ns", "When a thread of this rank first began to wait for the op; ns since the epoch, this "
                              "rank's clock. Null: no thread is known to have waited.", nullable=True),
        time("wait_end_ns", "When that wait ended. With a GPU, the thread continues at once and its stream waits "
                            "instead.", nullable=True),
        _MODULE_PATH,
        text("phase", "What the rank was doing: forward, backward, recompute, optimizer or evaluation. Null: none of "
                      "these.", nullable=True, among=STEP_PHASES),
        Column(name="in_autograd", type="bool", doc="In forward calls with gradients: whether gradients flow through "
                                                    "the result. They do not if ranks only combine a number for "
                                                    "display, like the mean of their losses. Null: "
                                                    "unknown.", nullable=True),
    ),
)

STEPS = Table(
    file="steps.parquet",
    doc="One row per step.",
    columns=(
        *TAGS,
        step("Step of the run, from 0."),
        text("pass", " ".join(f"{row.name}: {row.doc[0].lower()}{row.doc[1:]}" for row in PASSES), among=PASS_NAMES),
        time("start_ns", "Start; ns since the epoch, this rank's clock."),
        time("end_ns", "End; ns since the epoch, this rank's clock."),
        span("duration_ns", "end_ns - start_ns, by a monotonic clock."),
        span("device_ns", "Time on the current stream of the accelerator, from when it reached the start of the step "
                          "until it reached the end. The host may run ahead of it. Null without an accelerator, or if "
                          "the rank ended in the middle.", nullable=True),
        span("before_forward_ns", "From the start of the step to the first forward call: data loading and anything "
                                  "else the script does there, excluding optimizers (time pass).", nullable=True),
        span("fwd_ns", "Time inside root forward calls, excluding evaluation (time pass).", nullable=True),
        span("bwd_ns", "From the first gradient of a root module's output to the end of backward, excluding "
                       "optimizers that step in it (time pass).", nullable=True),
        span("optimizer_ns", "Time inside optimizer.step(), excluding its closure (time pass).", nullable=True),
        span("evaluation_ns", "Time inside root forward calls of evaluation (time pass).", nullable=True),
        int64("forward_calls", "Root forward calls of modules with parameters that ended in this step, excluding "
                               "evaluation.", nullable=True),
        int64("evaluation_calls", "The same, in evaluation.", nullable=True),
        int64("samples", "Samples passed to the root module that received the most: the first dimension of the first "
                         "tensor, summed over its forward calls, excluding evaluation; a tensor passed again counts "
                         "once. Null if no tensor was passed, and in wait passes that were not "
                         "observed.", nullable=True),
        int64("elements", "Elements of these tensors: for a batch of sequences, its tokens including padding.",
              nullable=True),
        span("cpu_ns", "CPU time of the thread that runs the steps (trace and arrivals passes).",
             nullable=True),
        int64("switched_out", "How often that thread was preempted while it could still run (trace and arrivals "
                              "passes).", nullable=True),
        span("run_queue_ns", "Time that it was runnable but had no processor (trace and arrivals passes). Null if the "
                             "kernel does not report it.", nullable=True),
    ),
)

WAITS = Table(
    file="waits.parquet",
    doc="Calls in the sync pass that make the host wait, or would on a device: one row per step, line, call, module, "
        "phase and thread.",
    columns=(
        *TAGS,
        step("Step of the run, from 0."),
        text("op", "The call that waits: aten::item, aten::nonzero, Tensor.cpu, cuda.synchronize, Work.wait, "
                   "Queue.get, ..."),
        text("waits_for", "What it waits for: device, communication, data (data loader workers), thread or process.",
             among=("device", "communication", "data", "thread", "process")),
        text("device", "Type of the device whose tensors are involved. Null: none.", nullable=True),
        text("file", "File of the innermost stack frame outside torch, the Python standard library and distprof."),
        int64("line", "Line number there, from 1."),
        text("function", "Function that contains the line."),
        text("library_call", "Function of torch or the standard library that the line calls. Null: the line makes the "
                             "call itself.", nullable=True),
        _MODULE_PATH,
        text("phase", "forward, backward, recompute, optimizer, evaluation or data. Null: none of these.",
             nullable=True, among=(*STEP_PHASES, "data")),
        text("thread", "steps: the thread that runs the steps; autograd: one of autograd's threads; otherwise the "
                       "thread's name."),
        Column(name="blocking", type="bool", doc="False if the call waits for nothing because its tensors are on the "
                                                 "host; on a device it would wait."),
        int64("calls", "Calls in this step."),
        span("blocked_ns", "Time in these calls; 0 if they wait for nothing."),
        span("longest_ns", "Time in the longest of them; 0 if it waits for nothing."),
    ),
)

LINE_PHASES = ("forward", "backward", "optimizer", "between")
LINES = Table(
    file="lines.parquet",
    doc="Which line of the script the thread that runs the steps was in, during the trace and arrivals passes: one row "
        "every 25 ms, or less often in long passes, if a line of the script was on its stack.",
    columns=(
        *TAGS,
        step("Step of the run, from 0."),
        time("at_ns", "Time of the sample; ns since the epoch, this rank's clock."),
        text("file", "File of the innermost line on the stack that is not in a library."),
        int64("line", "Line number, from 1."),
        text("function", "Function that contains the line."),
        text("library_call", "Library function that the line calls. Null: none.", nullable=True),
        text("phase", "What the thread was in, by its stack: a module's forward call, backward, an optimizer, or "
                      "nothing of these. Null: written by an older version.", nullable=True, among=LINE_PHASES),
    ),
)

COMPILATIONS = Table(
    file="compilations.parquet",
    doc="What torch.compile did in this process from the start of the recording to the end of the script: one row per "
        "compilation and graph break, in the order in which they finished.",
    columns=(
        *TAGS,
        step("Step of the run, from 0. Null: before the first or after the last recorded step.",
              nullable=True),
        text("event", "compile: first compilation of a function; recompile: again, because its guards failed; "
                      "backward: the backward graph, if it is compiled later; graph_break: a line at which a graph "
                      "had to end.",
             among=("compile", "recompile", "backward", "graph_break")),
        text("compile_id", "Torch's id of the compilation, like 0/1: function / number of earlier compilations. A "
                           "backward graph has the id of its forward graph, and a graph break that of the compilation "
                           "in which it occurred."),
        time("start_ns", "Start of the compilation; ns since the epoch, this rank's clock."),
        span("duration_ns", "How long it took while the thread waited. Null for a graph break.", nullable=True),
        text("file", "File of the compiled function or of the line at which the graph ends.", nullable=True),
        int64("line", "First line of that function or the line at which the graph ends, from 1.", nullable=True),
        text("function", "Name of the function; torch_dynamo_resume_in_... is the part that follows a graph break.",
             nullable=True),
        text("caller_file", "File of the innermost stack frame outside torch, the Python standard library and "
                            "distprof: the caller of the function.", nullable=True),
        int64("caller_line", "Line number there, from 1.", nullable=True),
        text("caller_function", "Function that contains the line.", nullable=True),
        text("module_path", "Path of the innermost module that was being called. Null: none, or a module that was not "
                            "called while distprof watched modules.", nullable=True),
        text("reason", "For a recompilation, the guard that failed, in torch's words, with its compilation (if "
                       "several failed, the one that torch names first). For a graph break, why the graph breaks. If "
                       "compilation failed, why. Null for a first compilation.",
             nullable=True),
        text("error", "Type of the exception if compilation failed; the function then runs uncompiled.",
             nullable=True),
        span("backend_ns", "Part of `duration_ns` spent in the backend: AOTAutograd and the compiler that it calls.",
              nullable=True),
        span("inductor_ns", "Part of that spent in Inductor.", nullable=True),
        span("fake_ns", "Part of `duration_ns` in which dynamo ran operators on fake tensors to infer shapes. Null if "
                        "torch does not time it.", nullable=True),
        span("guards_ns", "Part of `duration_ns` in which dynamo built guards. Null if torch does not time "
                          "it.", nullable=True),
    ),
)

EXTERNAL_ID = number("external_id", "Links an operator to the kernels it launched, within a rank.", nullable=True)
CORRELATION = number("correlation", "Links a kernel to the call that launched it, within a rank.", nullable=True)
SEQUENCE_NUMBER = number("sequence_number", "Links a forward operator to its backward, within a rank and thread.",
                        nullable=True)

EVENTS = Table(
    file="events.parquet",
    doc="The timeline of the trace pass as a table, in the order of the trace.",
    columns=(
        *TAGS,
        text("name", "Name of the event."),
        text("category", "Category, as the profiler gives it: cpu_op, user_annotation, kernel, ...", nullable=True),
        time("start_ns", "Start; ns since the epoch, this rank's clock."),
        span("duration_ns", "Duration; null for an instant.", nullable=True),
        text("process", "Process or device id, as the profiler gives it."),
        text("thread", "Thread or stream id, as the profiler gives it."),
        text("thread_name", "Name of the thread, if it has one.", nullable=True),
        step("Step in which the event starts; null outside the recorded steps.", nullable=True),
        EXTERNAL_ID,
        CORRELATION,
        SEQUENCE_NUMBER,
        number("forward_thread", "Thread on which forward ran, by the profiler's own numbering; 0 for anything but "
                                 "backward work. A backward operator has the sequence_number of its forward "
                                 "operator.", nullable=True),
    ),
)

EXECUTION_COLLECTIVES = Table(
    file="execution_collectives.parquet",
    doc="One row per communication op of the execution pass, like those of collectives.parquet.",
    columns=COLLECTIVES.columns)

RANK_TABLES = (MODULES, PARAMETERS, OPS, COLLECTIVES, STEPS, EVENTS)
ASKED_TABLES = (WAITS, TENSORS, USES, EXECUTION_COLLECTIVES, COMPILATIONS, LINES)
"""Tables written only if their pass ran; COMPILATIONS only if something was compiled."""
