"""The text of DeepSpeed's flops profiler, and its number formats, for numbers from a live model or a recorded run.

Headings and labels are exactly DeepSpeed's. Merging uses this too, so torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

TITLE = "-------------------------- DeepSpeed Flops Profiler --------------------------"
AGGREGATED = "----------------------------- Aggregated Profile per GPU -----------------------------"
DETAILED = "------------------------------ Detailed Profile per GPU ------------------------------"
END = "------------------------------------------------------------------------------"
NOTATIONS = """\
Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""
ORDER = """\
Each module profile is listed after its name in the following order: \

params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd latency, fwd \
FLOPS
"""
NOTES = """\
Note: 1. Work of a module outside of its submodules, like a loss computed by a function, is in its own line only.
2. FLOPs follow a counting convention, so a rate can lie above the peak of the device.
3. The latency of the root is the time of its forward call; with an engine the summary above has the engine's timer.
"""
NOTHING_RAN = "the model's forward was not called between start_profile and stop_profile"
DEFAULT_PRECISION = 2
SCALES = {"u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""Prefix of a unit -> its factor, smallest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleProfile:
    """Work and time of one module, including submodules."""

    params: int
    macs: int
    flops: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """Parameters over all model-parallel ranks."""

    plain: int
    expert: int
    expert_tensor_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSizes:
    """Numbers of ranks, and the batch size of a rank."""

    world: int
    data_parallel: int
    model_parallel: int
    batch: int | None
    """Samples of a rank in a step; None if unknown."""
    expert_tensor_parallel: bool | None = None
    """None without mixture-of-experts layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Times of one step, from the engine's timers or recorded steps."""

    forward: float
    backward: float
    step: float


def _text(number: float, letter: str | None, digits: int, unit: str = "") -> str:
    """Returns a number with the prefix `letter`, and at most `digits` decimals.

    Without a letter, the largest fitting prefix is used; letters that are not in SCALES follow the unscaled number.
    """
    if letter is None:
        fitting = [each for each, size in SCALES.items() if number >= size]
        letter = (fitting or ["u"])[-1] if number else ""
    return f"{round(number / SCALES.get(letter, 1.0), digits):g} {letter}{unit}"


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Formats a plain number: `4.54 M`, `0 `.

    Args:
        num: The number.
        units: One of T, G, M, K, m, u to force that prefix; None to choose one.
        precision: Maximum number of decimals. The other formats have the same parameters.
    """
    return _text(num, units, precision)


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Formats multiply-accumulates: `2.26 MMACs`."""
    return _text(macs, units, precision, "MACs")


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Formats FLOPs or FLOP/s: `4.54 MFLOPS`."""
    return _text(flops, units, precision, "FLOPS")


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Formats bytes by powers of ten: `1.5 KB`."""
    return _text(b, units, precision, "B")


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Formats seconds: `298.02 us`."""
    return _text(duration, units, precision, "s")


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Formats numbers of parameters, with the letter B for 10^9: `1.3 B`. No space follows a number without a
    letter."""
    digits, _, letter = _text(params_num, "G" if units == "B" else units, precision).partition(" ")
    return f"{digits} {letter.replace('G', 'B')}".rstrip()


def report_text(profile_step: int, summary: Iterable[str], top_modules: Iterable[str], tree: str | None) -> str:
    """Returns the whole report, without the last line end.

    Args:
        profile_step: Step named in the headline.
        summary: Result of `summary_lines`.
        top_modules: Result of `top_modules_lines`.
        tree: The printed model with a `module_line` in each module; None to omit the detailed part.
    """
    lines = ["", TITLE, f"Profile Summary at step {profile_step}:", NOTATIONS, *summary, "", AGGREGATED, *top_modules]
    if tree is not None:
        lines += ["", DETAILED, ORDER, NOTES, tree]
    return "\n".join([*lines, END])


def _line(name: str, value: object) -> str:
    return f"{name + ' ':<70}  {value:<8}"


def _rate(name: str, flops: float, seconds: float) -> str:
    return _line(name, flops_to_string(flops / seconds) if seconds else "-")


def summary_lines(total: ModuleProfile, params: ModelParams, *, sizes: JobSizes | None = None,
                  times: StepSeconds | None = None, recompute_fwd_factor: float = 0.0) -> Iterator[str]:
    """Yields the lines with totals of the model.

    Args:
        total: The root module, on one rank.
        params: Parameters of the model over all ranks.
        sizes: Sizes of the job, if there is one; adds lines with them.
        times: Times of a step, of which forward replaces the time of the root module; with `sizes`, adds backward and
            the whole step.
        recompute_fwd_factor: Forward work repeated in backward, as a fraction of forward.
    """
    shards = sizes.model_parallel if sizes is not None else 1
    if sizes is not None:
        yield from _sizes(sizes)
    yield _line("params per GPU:", params_to_string(total.params))
    yield from _model_params(params)
    yield _line("fwd MACs per GPU:", macs_to_string(total.macs))
    yield _line("fwd flops per GPU:", number_to_string(total.flops))
    yield _line("fwd flops of model = fwd flops per GPU * mp_size:", number_to_string(total.flops * shards))
    forward = times.forward if times is not None else total.seconds
    yield _line("fwd latency:", duration_to_string(forward) if forward else "-")
    yield _rate("fwd FLOPS per GPU = fwd flops per GPU / fwd latency:", total.flops, forward)
    if times is not None and sizes is not None:
        yield from _iteration(total.flops, times, sizes, 2 + recompute_fwd_factor)
    elif not forward:
        yield NOTHING_RAN


def _sizes(sizes: JobSizes) -> Iterator[str]:
    yield _line("world size:", sizes.world)
    yield _line("data parallel size:", sizes.data_parallel)
    yield _line("model parallel size:", sizes.model_parallel)
    yield _line("batch size per GPU:", "-" if sizes.batch is None else sizes.batch)
    if sizes.expert_tensor_parallel is not None:
        yield _line("expert tensor parallelism enabled:", sizes.expert_tensor_parallel)


def _model_params(params: ModelParams) -> Iterator[str]:
    if params.expert:
        yield _line("params of model:", params_to_string(params.plain + params.expert))
        yield _line("   non-expert params of model:", params_to_string(params.plain))
        yield _line("   expert params of model:", params_to_string(params.expert))
    else:
        yield _line("params of model = params per GPU * mp_size:", params_to_string(params.plain))


def _iteration(flops: int, times: StepSeconds, sizes: JobSizes, factor: float) -> Iterator[str]:
    forward, backward, whole = times.forward, times.backward, times.forward + times.backward + times.step
    yield _line("bwd latency:", duration_to_string(backward))
    yield _rate(f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency:", factor * flops, backward)
    yield _rate(f"fwd+bwd FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / (fwd+bwd latency):",
                (factor + 1) * flops, forward + backward)
    yield _line("step latency:", duration_to_string(times.step))
    yield _line("iter latency:", duration_to_string(whole))
    yield _rate(f"FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / iter latency:", (factor + 1) * flops, whole)
    known = sizes.batch is not None and whole
    yield _line("samples/second:", round((sizes.batch or 0) * sizes.world / whole, DEFAULT_PRECISION) if known else "-")


ClassProfiles = Mapping[str, Sequence[ModuleProfile]]
"""Class name -> its modules at one depth."""
RANKED: tuple[tuple[str, Callable[[ModuleProfile], float], Callable[[float], str]], ...] = (
    ("params", lambda module: module.params, params_to_string),
    ("MACs", lambda module: module.macs, macs_to_string),
    ("fwd latency", lambda module: module.seconds, duration_to_string),
)
"""Label, quantity and number format of each line for a depth."""


def top_modules_lines(depths: Iterable[ClassProfiles], top_modules: int) -> Iterator[str]:
    """Yields the classes with the most parameters, MACs and latency at each depth, from the root downwards."""
    yield f"Top {top_modules} modules in terms of params, MACs or fwd latency at different model depths:"
    for depth, classes in enumerate(depths):
        yield f"depth {depth}:"
        for label, quantity, text in RANKED:
            sums = {name: sum(map(quantity, modules)) for name, modules in classes.items()}
            largest = sorted(sums, key=sums.__getitem__, reverse=True)[:top_modules]
            shown = {name: text(sums[name]) for name in largest}
            yield f"    {label:<11} - {shown}"


def module_line(module: ModuleProfile, total: ModuleProfile) -> str:
    """Returns the numbers of one module, also as percentages of the model; they precede the module's own
    description."""
    rate = round(module.flops / module.seconds, DEFAULT_PRECISION) if module.seconds else 0
    return ", ".join((
        f"{params_to_string(module.params)} = {_share(module.params, total.params)}% Params",
        f"{macs_to_string(module.macs)} = {_share(module.macs, total.macs)}% MACs",
        f"{duration_to_string(module.seconds)} = {_share(module.seconds, total.seconds)}% latency",
        flops_to_string(rate)))


def _share(part: float, whole: float) -> str:
    return f"{round(100 * part / whole, DEFAULT_PRECISION) if whole else 0:g}"
