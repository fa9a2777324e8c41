"""Prints the screen of `distprof stats` from the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.contract.paths import SUMMARY_JSON
from distprof.contract.problems import Problem, Remark, from_json
from distprof.merge.text.communication.culprits import lines_of_summary
from distprof.merge.text.communication.device_steps import idle_words
from distprof.merge.text.phrases import (
    change_line,
    clock_line,
    evaluation_line,
    step_line,
    steps_words,
)
from distprof.merge.text.problems import show_problems
from distprof.merge.text.rates import bubble, exposed, lightly, mesh, mfu, rates
from distprof.merge.text.watch import end_lines, is_slow_later, watched_of
from distprof.merge.totals.step_time import step_time_of
from distprof.reporters.page import Page
from distprof.terminal import quoted, quoted_all
from distprof.units import counted, duration, percent, si, spans

if TYPE_CHECKING:
    from distprof.reporters.tree_report import TreeReport  # with rich, which takes a while to import

QUANTITY_NAMES = {
    "params": "params",
    "stored_params": "stored params",
    "fwd_macs": "forward MACs",
    "fwd_flops": "forward FLOPs",
    "bwd_flops": "backward FLOPs",
    "recompute_flops": "recomputed FLOPs",
}
TIME_NAMES = {
    "step_ns": "step",
    "before_forward_ns": "before forward",
    "fwd_ns": "forward",
    "bwd_ns": "backward (with waits)",
    "optimizer_ns": "optimizer",
}
SHOWN_UNCOUNTED = 6


def render_passes(summary: Mapping[str, Any], paths: Sequence[Path], page: Page) -> str:
    """Returns what recording costs: how long steps of each pass take compared with the step time."""
    _topology(summary, page)
    page.line(rates(summary)[0])
    page.line()
    page.table(("pass", "steps", "median", "of the step time"), [
        (one["pass"], str(one["num_steps"]), duration(one["time_ns"]),
         "-" if one["ratio"] is None else f"{one['ratio']:.2f} x") for one in summary["passes"]])
    page.line("steps: without the first of each pass, in which recording warms up. The step time is the median of the "
              "steps of the time and arrivals passes, which have little overhead, with the range of 5 to 95 % of them "
              "in brackets; without such steps, it is that of the steps with the profiler on")
    page.line()
    page.line(f"Next: distprof stats {quoted_all(paths)}")
    return page.text()


def render(summary: Mapping[str, Any], paths: Sequence[Path], page: Page, *, top: int) -> str:
    """Returns the screen as text."""
    if summary["kind"] == "traces":
        return _of_traces(summary, paths[0], page)
    _head(summary, page)
    _ranks(summary, page)
    _communication(summary, page)
    _modules(summary, page, top)
    _foot(summary, paths, page)
    return page.text()


def _of_traces(summary: Mapping[str, Any], path: Path, page: Page) -> str:
    """Returns the screen for traces of another program, which have no modules."""
    _topology(summary, page)
    page.line("params, FLOPs and times of modules unknown: these are traces of another program, and no module profiler "
              "ran (distprof run records them)")
    _on_devices(summary["communication"], page)
    page.line(f"clock {summary['clock']['method']}")
    page.line()
    _problems(summary, page)
    if not (path / SUMMARY_JSON).is_file():
        page.line(f"Next: distprof merge {quoted(path)}{'' if path.is_dir() else ' --out merged'}")
    return page.text()


def render_modules(summary: Mapping[str, Any], modules: TreeReport, paths: Sequence[Path], page: Page) -> str:
    """Returns the screen with all modules as a tree in place of ranks and top modules."""
    _head(summary, page)
    page.line("modules: per GPU and step, mean over the ranks that have the module")
    page.line()
    page.report(modules)
    page.line()
    _foot(summary, paths, page)
    return page.text()


def _head(summary: Mapping[str, Any], page: Page) -> None:
    _topology(summary, page)
    _totals(summary, page)
    _step(summary, page)


def _foot(summary: Mapping[str, Any], paths: Sequence[Path], page: Page) -> None:
    _uncounted(summary, page)
    page.line(clock_line(summary["clock"]))
    _problems(summary, page)
    page.line()
    page.line(f"Next: distprof comms {quoted_all(paths)}")


def _topology(summary: Mapping[str, Any], page: Page) -> None:
    if summary["topology"] is None:
        page.line(f"{mesh(summary)}   mp_size and dp_size unknown: the traces do not state how the model was split")
    else:
        page.line(f"{mesh(summary)}   mp_size {summary['mp_size']}, dp_size {summary['dp_size']}"
                  f"   ({summary['topology_source']})")
    page.line()


def _totals(summary: Mapping[str, Any], page: Page) -> None:
    per_gpu, model = summary["per_gpu"], summary["model"]
    unique = {"params": "unknown" if model["unique_params"] is None else si(model["unique_params"])}
    rows = [(name, si(per_gpu[key]["mean"]), _range(per_gpu[key]), si(model[key]), unique.get(key, ""))
            for key, name in QUANTITY_NAMES.items() if per_gpu[key]["mean"] is not None]
    doubt = "" if summary["topology_certain"] else ", not certain"
    page.table(("per step", "per GPU", "over ranks", f"model = per GPU x {summary['mp_size']}{doubt}",
                "replicas once"), rows)
    if (light := lightly(summary)) is not None:
        page.line(f"MACs and FLOPs: counted on {len(light.full)} of {counted(light.of, 'rank')} "
                  f"({spans(light.full) or 'none'})")
    if summary["uncounted_ops"]:
        page.line("MACs and FLOPs: at least these, as some operators are not counted (below)")
    if model["active_params"] is not None:
        page.line(f"active params per token: {si(model['active_params'])}, if experts share tokens evenly")
    page.line()


def _range(spread: Mapping[str, Any]) -> str:
    if spread["min"] == spread["max"]:
        return "all equal"
    return f"{si(spread['min'])} (rank {spread['min_rank']}) .. {si(spread['max'])} (rank {spread['max_rank']})"


def _step(summary: Mapping[str, Any], page: Page) -> None:
    step = summary["step"]
    for line in (step_line(step["found"]), evaluation_line(summary["evaluation"])):
        if line is not None:
            page.line(line)
    page.line("   ".join(rates(summary)))
    words = steps_words(summary)
    for line in (*(() if words is None else (words,)), *change_line(summary)):
        page.line(line)
    if step["time_ns"] is not None:
        page.line(mfu(step, at_least=bool(summary["uncounted_ops"])))
    page.line()


def _ranks(summary: Mapping[str, Any], page: Page) -> None:
    spreads = summary["per_gpu"]
    rows = [(name, *(duration(spreads[key][what]) for what in ("mean", "min", "max")),
             f"{spreads[key]['min_rank']} / {spreads[key]['max_rank']}")
            for key, name in TIME_NAMES.items() if spreads[key]["mean"] is not None]
    if rows:
        page.table(("time over ranks", "mean", "min", "max", "rank of min / max"), rows)
        page.line("parts of the step: their shares in the steps with module timers, scaled to the step time")
    slowest = summary["slowest_rank"]
    if slowest is not None:
        page.line(f"slowest rank {slowest['rank']}: forward + backward {duration(slowest['fwd_bwd_ns'])}, "
                  f"{slowest['ratio_to_median']:.2f} x the median rank (waits for others included)")
        page.line()


def _communication(summary: Mapping[str, Any], page: Page) -> None:
    found, job = summary["communication"], end_lines(watched_of(summary))
    if found is None:
        for line in (*job, "") if job else ():
            page.line(line)
        return
    _on_devices(found, page)
    if found["pipeline"] is not None:
        page.line(bubble(found["pipeline"]))
    late = lines_of_summary(found, summary["ranks"], missing=summary["missing_ranks"],
                            usual=step_time_of(summary["step"]), slow_later=is_slow_later(watched_of(summary)))
    for line in (*late, *job, ""):
        page.line(line)


def _on_devices(found: Mapping[str, Any] | None, page: Page) -> None:
    """Prints how much of a step is exposed communication, and how much of it devices are idle."""
    if found is not None and (line := exposed(found)) is not None:
        page.line(line)
    if found is not None and found.get("devices"):
        page.line(idle_words(found["devices"]))


def _modules(summary: Mapping[str, Any], page: Page, top: int) -> None:
    staged = summary["topology"].get("pp", 1) > 1
    modules = summary["modules"][:top]
    times = {"forward": "fwd_time_ns_mean", "backward": "bwd_time_ns_mean"}
    if any(module["recompute_time_ns_mean"] is not None for module in modules):
        times["recomputed"] = "recompute_time_ns_mean"
    rows = [
        ((f"stage {module['stage']}: " if staged else "") + (module["module_path"] or "(root)"), module["class_name"],
         si(module["params_mean"]), si(module["fwd_macs_mean"]),
         *(duration(module[column]) for column in times.values()),
         "-" if module["slowest_rank"] is None else str(module["slowest_rank"]))
        for module in modules
    ]
    if rows:
        page.table(("top modules, per GPU", "class", "params", "MACs", *times, "slowest rank"), rows, left=2)
        page.line()


def _uncounted(summary: Mapping[str, Any], page: Page) -> None:
    ratio, ops = summary["coverage_ratio"], summary["uncounted_ops"]
    if ratio is None:
        page.line("FLOPs unknown: no step was counted")
        return
    page.line("FLOPs are those of matrix products, convolutions, attention and recurrent layers; ops that "
              f"distprof does not know moved {percent(1 - ratio)} of all bytes")
    if ops:
        shown = ", ".join(op["op"].removeprefix("aten::") for op in ops[:SHOWN_UNCOUNTED])
        more = f" and {len(ops) - SHOWN_UNCOUNTED} more" if len(ops) > SHOWN_UNCOUNTED else ""
        page.line(f"    not counted: {shown}{more}")


def _problems(summary: Mapping[str, Any], page: Page) -> None:
    show_problems(from_json(Remark, summary["remarks"]), from_json(Problem, summary["problems"]), page)
