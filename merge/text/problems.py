"""Turns problems and remarks into sentences: one entry per code, or per kind of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from string import Formatter
from typing import Any

import msgspec

from distprof.contract import problems as codes
from distprof.contract.mesh import SIZE_FLAGS
from distprof.contract.problems import Problem, Remark
from distprof.errors import IncompleteError
from distprof.merge.text.phrases import rank_list
from distprof.reporters.page import Page
from distprof.units import counted, duration, numbered, si, size, spans

SENTENCES: dict[type[Problem | Remark], str | dict[str, str]] = {
    codes.Unreadable: "{rank:of_rank}{file:unreadable}{detail}",
    codes.RanksMissing: "{ranks:ranks} of {world_size} missing{where:where}",
    codes.Unfinished: {
        "recording": "rank {rank} did not finish recording (killed, out of disk, or still running): "
                     "{steps:# step} recorded",
        "partial": "rank {rank} is partial: {why}",
        "failed": "rank {rank} failed: {why}",
    },
    codes.RankFailed: "rank {rank} failed first: {exit_code:exit_code}{why:note}",
    codes.FilesMissing: "rank {rank} lacks {files:names}",
    codes.FolderLeftOut: "{folder} was skipped: {why}",
    codes.MemoryEndedEarly: "the memory pass of rank {rank} stopped in step {step}: its records would have taken "
                            "{taken_bytes:size} of memory, and the limit is {most_bytes:size}. Later allocations are "
                            "unknown: the peak may be higher, and memory that was allocated then seems never to be "
                            "freed",
    codes.TimelinesCapped: "timelines of {ranks:ranks} lack the {num_events} shortest events (up to {longest_ns:ns} "
                           "each, {total_ns:ns} in total), which did not fit into --max-rank-size {most_bytes:size}",
    codes.NoteOfRank: "rank {rank}: {detail}",
    codes.StepsUnsure: {
        "irregular": "a step may not be an iteration: {names:names} step in no regular pattern ({num_turns:# step} "
                     "examined). Say which of their steps end an iteration with --step-every CLASS or --step-every N",
        "silent": "a step may not be an iteration: {names:names} had not stepped after {num_turns:# step} of others. "
                  "Say how many optimizer steps make an iteration with --step-every N",
        "differ": "ranks found different steps ({ranks:ranks} and others), so step numbers do not match. Make them "
                  "match with --step-every or rec.step()",
        "left": "from step {step} on, optimizers no longer followed the pattern found before. Say what ends a step "
                "with --step-every",
        "explicit": "rec.step() was first called in step {step}; earlier steps ended with optimizer steps. Wait "
                    "longer with --steps wait=...",
        "late": "an optimizer stepped in step {step}, after the job had been taken for inference. Wait longer with "
                "--steps wait=..., or say what ends a step with --step-every",
    },
    codes.AttemptsDiffer: "ranks are from different torchrun attempts: {attempts:names}",
    codes.CallsDiffer: "ranks disagree about {num_collectives:# collective}; distprof comms lists them",
    codes.ModulesUncounted: "{num_modules:# module} not counted: first called after the count pass "
                            "({modules:modules}). FLOP/s per step are unknown",
    codes.TraceWithoutRank: "{file} was skipped: neither its contents nor its name give its rank",
    codes.SeveralTraces: "rank {rank} has several traces: the newest, {used}, is merged; {left_out:first} skipped",
    codes.WorldSizesDiffer: "the world size is unclear from the traces: {ranks_by_size:sizes}; the highest rank is "
                            "{highest_rank}",
    codes.TraceDamaged: {
        "all": "rank {rank} is left out: {detail}",
        "container": "rank {rank}: {file} {detail}",
        "end": "rank {rank}: {file} is cut off after {num_events:# whole event}: {lost_bytes:# byte} lost",
        "places": "rank {rank}: {file} is damaged at {places:# place}: {lost_bytes:# byte} lost",
        "events": "rank {rank}: {num_events:# event} of {file} skipped: no phase, or a time that is not a "
                  "number",
        "keys": "rank {rank}: {file} is damaged outside its events: {lost_bytes:# byte} lost{detail:values}",
        "durations": "rank {rank}: {num_events:# kernel} of {file} counted only until the next one starts on the same "
                     "stream: ROCm recorded times that are too long",
        "times": "rank {rank}: {num_events:# command} of {file} left out: the profiler recorded impossible times",
    },
    codes.TopologyUncertain: {
        "not_recorded": "assuming all ranks are data parallel, but no recorded step shows what they exchange: model "
                        "totals may be wrong; give --dp, or {doubt:flags}",
        "parameters_differ": "assuming all ranks are data parallel, but they hold different parameters, and nothing "
                             "they exchange in a recorded step explains that: model totals may be wrong; give "
                             "{doubt:flags}",
        "replicas_join": "assuming all ranks are data parallel, but ranks with the same parameters combine results "
                         "inside modules: model totals may be wrong; give --cp or --tp if they share the work on a "
                         "sample, --dp if not",
        "no_mesh": "assuming all ranks are data parallel, but what they hold and exchange fits neither that nor any "
                   "other device mesh: model totals may be wrong; give {doubt:flags}",
    },
    codes.ClocksNotAligned: "clocks are not aligned ({ranks:ranks}): {reason:reason}{note:note}",
    codes.ClocksWrong: "clocks are wrong: {violations} of {num_collectives} collectives finish on one rank before "
                       "every rank has entered, by up to {largest_ns:ns}; clock uncertainty explains only "
                       "{allowed_ns:ns}",
    codes.WallClockSet: "the wall clock was adjusted by up to {set_by_ns:ns} while recording",
    codes.FilesLeftOut: "{num_files:# file} skipped: {instead} ({files:names})",
    codes.TracesBeside: "{num_files:# trace} of other programs next to those of torch.profiler: {drawn:drawn} "
                        "({files:names})",
    codes.TimesFromStart: "clocks of other programs are not those of the ranks: {num_files:# trace} drawn from the "
                          "start of the rank's trace ({files:names})",
    codes.SeveralRanksInFile: "{file} has events of several ranks and is read as one; distprof split takes it apart",
    codes.TimesInNanoseconds: "times of {num_files:# trace} are read as nanoseconds, not microseconds ({files:names})",
    codes.ExecutionTraces: "there are execution traces of {ranks:ranks} next to the timelines "
                           "({files:names}){missing:lack}; they have no times and are not merged. distprof export "
                           "joins the two",
    codes.ExecutionTraceLeftOut: {
        "unknown": "{file} skipped: an execution trace whose calls are in none of these timelines",
        "without_rank": "{file} skipped: an execution trace of {timelines:names}, whose rank is unknown. distprof "
                        "export {file} {timelines:names} joins the two",
        "taken": "{file} skipped: another execution trace already belongs to {timelines:names}",
        "alike": "{file} skipped: an execution trace whose calls are in several timelines ({timelines:names}). Put the "
                 "rank into its name, like et_rank0.json",
    },
    codes.RanksFromNames: "{contradicted:same_rank}ranks are taken from {names:source} the file names",
    codes.WorldSizeFromRanks: "{contradicted:world_size}, so it is assumed to be {world_size}, the highest rank plus "
                              "one",
    codes.MatchingInferred: {
        "label": "{num_rows} of {total} rows of collectives are matched by order, op, type and size: the traces have "
                 "neither ids nor comparable sequence numbers",
        "order": "{num_rows} of {total} rows of collectives are matched only by the order of their ops: the traces "
                 "have no types and sizes",
        "group": "{num_rows} of {total} rows of collectives have no process group and are assumed to involve all "
                 "ranks",
        "none": "{num_rows} of {total} rows of collectives are not matched: their ranks are in several process "
                "groups, and the traces do not say which one issued them",
    },
    codes.EarlierAttempts: "the job was restarted: this is attempt {shown}; attempt {attempt} ended{why:because} "
                           "(show it with --attempt {attempt})",
    codes.RecordedLightly: "{full:number} of {of} ranks recorded fully ({full:spans}), the others lightly: timelines, "
                           "operators and counts cover only the former, and late ranks are judged by steps without a "
                           "timeline{parts_counted:uncounted}",
    codes.RecordedLater: "recorded later in a job: step 0 here is step {first} of the job, the last one {last}",
    codes.RecordedAgain: "more was recorded later in the job: {num_runs:# run} in {folder}",
    codes.ScriptInterrupted: "the script was interrupted after the recording was complete",
    codes.ScriptProfiled: "the script ran its own torch.profiler in {steps:steps} of {ranks:ranks}: distprof recorded "
                          "nothing there, and those events are as without distprof",
    codes.StepsUneven: "timed steps are uneven: the longest took {ratio:.0f} x the median. Compilation or "
                       "warm-up? (wait longer with --steps wait=...)",
    codes.CountedUnlike: "the counted step had {counted:amount} {unit:unit}, the average step {usual:amount}: FLOP/s "
                         "and MFU account for that; counts are those of the counted step",
    codes.FirstStepLeftOut: "step {step} is skipped: the profiler was warming up",
    codes.CulpritsOfAllSteps: "late ranks are judged over all steps: {first}-{last}",
    codes.MergeAlone: "this is a merge without its rank folders, so step breakdowns are not available",
}
KINDS = ("what", "status", "doubt")
"""Fields by which a sentence is chosen if a code has several."""
CLOCK_REASONS: dict[codes.ClockReason | None, str] = {
    "asked": "--align none",
    "hosts_unknown": "the ranks' hosts are unknown, and no clock offsets were measured",
    "no_samples": "the ranks ran on several hosts, and no clock offsets were measured",
    "samples_do_not_join": "no clock samples link them to the common clock",
    "too_few_collectives": "they share fewer than 3 synchronising collectives with ranks on the common clock",
    None: "the reason is not known",
}
NAMED = 8
"""Number of ranks with the same problem up to which each is named."""
ALIKE: dict[type[Problem], tuple[str, ...]] = {
    codes.Unreadable: ("file",), codes.Unfinished: ("status",), codes.RankFailed: (), codes.FilesMissing: ("files",),
    codes.MemoryEndedEarly: (), codes.NoteOfRank: ("detail",), codes.SeveralTraces: (), codes.TraceDamaged: ("what",),
}
"""Fields in which problems of several ranks must agree to be the same for a reader."""
FORMATS: dict[str, Callable[[Any], str]] = {
    "ns": duration,
    "of_rank": lambda rank: "" if rank is None else f"rank {rank}: ",
    "unreadable": lambda file: "" if file is None else f"{file} cannot be read: ",
    "ranks": rank_list,
    "where": lambda found: f"; recorded in {', '.join(found)}: pass that directory, too" if found else "",
    "lack": lambda ranks: f", none of {rank_list(ranks)}" if ranks else "",
    "names": lambda names: ", ".join(map(str, names)),
    "modules": lambda paths: ", ".join(path or "(root)" for path in paths),
    "first": lambda names: f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are",
    "steps": lambda steps: numbered("step", steps),
    "exit_code": lambda code: "an exception" if code is None else f"exit code {code}" if code >= 0 else
    f"killed by signal {-code}",
    "because": lambda why: "" if why is None else f" with {why}",
    "sizes": lambda found: ", ".join(
        f"{number} in {numbered('rank', ranks)}" for number, ranks in sorted(found.items())),
    "reason": lambda reason: CLOCK_REASONS[reason],
    "size": size,
    "number": lambda ranks: str(len(ranks)),
    "spans": lambda ranks: spans(ranks) if ranks else "none",
    "uncounted": lambda known: "" if known else "; they do not cover all parts of the model, so some FLOPs are "
                                                "unknown",
    "note": lambda note: "" if note is None else f" ({note})",
    "flags": lambda _: SIZE_FLAGS,
    "amount": lambda value: f"{value:.3g}" if value < 1000 else si(value),
    "unit": lambda name: "input elements" if name == "elements" else name.replace("_", " "),
    "values": lambda keys: f", including values of {keys}" if keys else "",
    "source": lambda names: {"rank": "the rank in", "mesh": "tp, pp and dp in",
                             "host": "the order of the hosts in"}[names],
    "drawn": lambda drawn: "drawn as processes of the rank" if drawn else
    "skipped here, and drawn as processes of the rank by distprof merge",
    "same_rank": lambda contradicted: "several traces claim the same rank: " if contradicted else "",
    "world_size": lambda contradicted: "the world size in the traces does not fit the ranks" if contradicted else
    "no trace states the world size",
}
"""Format specification after the colon of a field -> how the field is written; after `# `, it says what is counted."""


class _Sentences(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("# "):
            return counted(value, format_spec[2:])
        known = FORMATS.get(format_spec)
        return known(value) if known is not None else format(value, format_spec)


def sentence(one: Problem | Remark) -> str:
    """Returns the meaning of a code with its fields."""
    fields, words = msgspec.structs.asdict(one), SENTENCES[type(one)]
    if isinstance(words, dict):
        words = words[next(fields[name] for name in KINDS if name in fields)]
    return _Sentences().vformat(words, (), fields)


def sentences(found: Iterable[Problem | Remark]) -> Iterator[str]:
    """Yields the `sentence` of each."""
    return map(sentence, found)


def show_problems(remarks: Iterable[Remark], problems: Iterable[Problem], page: Page) -> None:
    """Prints a line for each; if many ranks have the same problem, for the first `NAMED`, and one for the others."""
    for text in sentences(remarks):
        page.line(f"note: {text}", style="yellow")
    for text in problem_lines(problems):
        page.line(f"incomplete: {text}", style="yellow")


def problem_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """Yields the `sentence` of each; for many ranks with the same problem, that of `NAMED`, and one for the others."""
    alike = dict[Any, list[Problem]]()
    for one in problems:
        alike.setdefault(_kind(one), []).append(one)
    for some in alike.values():
        few = some if len(some) <= NAMED + 1 else some[:NAMED]
        yield from sentences(few)
        if len(few) < len(some):
            yield f"the same for {rank_list(sorted({msgspec.structs.asdict(one)['rank'] for one in some[NAMED:]}))}"


def fail_if_incomplete(problems: Sequence[Problem], *, strict: bool) -> None:
    """Raises IncompleteError if something is missing and `--strict` was given."""
    if strict and problems:
        raise IncompleteError(f"incomplete: {'; '.join(problem_lines(problems))}",
                              hint="without --strict, this exits with 0")


def _kind(one: Problem) -> Any:
    """Returns a key that is equal for problems of ranks that agree in the fields of `ALIKE`."""
    fields = msgspec.structs.asdict(one)
    if type(one) not in ALIKE or fields["rank"] is None:
        return id(one)
    return type(one), *(fields[name] for name in ALIKE[type(one)])
