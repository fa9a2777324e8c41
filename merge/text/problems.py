"""Problems and remarks in sentences: one row per code, and per kind of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from string import Formatter
from typing import Any

import msgspec

from distprof.contract import problems as codes
from distprof.contract.mesh import SIZE_FLAGS
from distprof.contract.problems import Problem, Remark
from distprof.merge.text.phrases import rank_list
from distprof.reporters.page import Page
from distprof.units import counted, duration, numbered, size, spans

SENTENCES: dict[type[Problem | Remark], str | dict[str, str]] = {
    codes.Unreadable: "{rank:of_rank}{file:unreadable}{detail}",
    codes.RanksMissing: "{ranks:ranks} of {world_size} missing{where:where}",
    codes.Unfinished: {
        "recording": "rank {rank} did not finish recording (killed, out of disk, or still running): "
                     "{steps:# step} recorded",
        "partial": "rank {rank} is partial: {why}",
        "failed": "rank {rank} is failed: {why}",
    },
    codes.RankFailed: "rank {rank} failed first: {exit_code:exit_code}{why:note}",
    codes.FilesMissing: "rank {rank} lacks {files:names}",
    codes.FolderLeftOut: "{folder} is left out: {why}",
    codes.MemoryEndedEarly: "the memory pass of rank {rank} ended in step {step}, as what it records would have taken "
                            "{taken_bytes:size} of memory and may take {most_bytes:size}. What came later is not "
                            "known: the peak may be higher, and what was alive then seems never freed",
    codes.TimelinesCapped: "timelines of {ranks:ranks} lack their {num_events} shortest events, of up to "
                           "{longest_ns:ns} and {total_ns:ns} together: more would not fit into --max-rank-size "
                           "{most_bytes:size}",
    codes.NoteOfRank: "rank {rank}: {detail}",
    codes.StepsUnsure: {
        "irregular": "a step may not be an iteration: {names:names} step in no pattern ({num_turns:# step} looked at). "
                     "--step-every CLASS, or --step-every N, says which of their steps end one",
        "silent": "a step may not be an iteration: {names:names} had not stepped after {num_turns:# step} of others. "
                  "--step-every N says how many optimizer steps make one",
        "differ": "ranks found different steps ({ranks:ranks} and others): numbers of steps do not match. "
                  "--step-every, or rec.step(), makes them equal",
        "left": "from step {step} on, optimizers stepped otherwise than found. --step-every says what ends a step",
        "explicit": "rec.step() was first called in step {step}, and steps before that ended with optimizer steps. "
                    "--steps wait=... waits longer",
        "late": "an optimizer stepped in step {step}, and the job had been taken for inference. --steps wait=... waits "
                "longer, --step-every says what ends a step",
    },
    codes.AttemptsDiffer: "ranks are of different attempts of torchrun: {attempts:names}",
    codes.CallsDiffer: "ranks disagree about {num_collectives:# collective}, which distprof comms names",
    codes.ModulesUncounted: "{num_modules:# module} not counted: first called when FLOPs had been counted "
                            "({modules:modules}). FLOP/s of a step are not known",
    codes.TraceWithoutRank: "{file} was left out: nothing in it or in its name says of which rank it is",
    codes.SeveralTraces: "rank {rank} has several traces: the newest, {used}, is merged, and {left_out:first} left out",
    codes.WorldSizesDiffer: "the world size in the traces is not clear: {ranks_by_size:sizes}, and the highest rank is "
                            "{highest_rank}",
    codes.TraceDamaged: {
        "all": "rank {rank} is not in the merged trace: {detail}",
        "container": "rank {rank}: {file} {detail}",
        "end": "rank {rank}: {file} ends too early, after {num_events:# whole event}: {lost_bytes:# byte} lost",
        "places": "rank {rank}: {file} is damaged at {places:# place}: {lost_bytes:# byte} lost",
        "events": "rank {rank}: {num_events:# event} of {file} left out: without a phase, or with a time "
                  "that is not a number",
        "keys": "rank {rank}: {file} is damaged beside its events: {lost_bytes:# byte} lost{detail:values}",
    },
    codes.TopologyUncertain: {
        "not_recorded": "all ranks are taken for data parallel, but no recorded step shows what they exchange: totals "
                        "of the model may be wrong; give --dp, or {doubt:flags}",
        "parameters_differ": "all ranks are taken for data parallel, but they hold different parameters and nothing "
                             "that they exchange in a recorded step says why: totals of the model may be wrong; give "
                             "{doubt:flags}",
        "replicas_join": "all ranks are taken for data parallel, but with the same parameters they join results inside "
                         "modules: totals of the model may be wrong; give --cp or --tp if they share the work on a "
                         "sample, --dp if they do not",
        "no_mesh": "all ranks are taken for data parallel, but what they hold and exchange does not fit that, nor any "
                   "other device mesh: totals of the model may be wrong; give {doubt:flags}",
    },
    codes.ClocksNotAligned: "clocks are not aligned ({ranks:ranks}): {reason:reason}{note:note}",
    codes.ClocksWrong: "clocks are wrong: {violations} of {num_collectives} collectives end on a rank before all are "
                       "in, by up to {largest_ns:ns}; the uncertainty of the clocks explains {allowed_ns:ns}",
    codes.WallClockSet: "the wall clock was set by up to {set_by_ns:ns} while recording",
    codes.ReadSummaries: "read: summaries of {num_ranks:# rank}, tables of {tables:of_some}{times_of:times}{cut:cut}. "
                         "--exact reads all",
    codes.FilesLeftOut: "{num_files:# file} left out: {instead} ({files:names})",
    codes.ExecutionTraces: "execution traces of {ranks:ranks} lie beside their timelines "
                           "({files:names}){missing:lack}; they have no times and are not merged: distprof "
                           "export joins the two",
    codes.RanksFromNames: "{contradicted:same_rank}ranks are from {names:source} in the file names",
    codes.WorldSizeFromRanks: "{contradicted:world_size}, so it is taken as {world_size}: the highest rank plus one",
    codes.MatchingInferred: {
        "label": "{num_rows} of {total} rows of collectives are matched by their order of op, type and size: the "
                 "traces have neither ids nor comparable sequence numbers",
        "order": "{num_rows} of {total} rows of collectives are matched by the order of their ops alone: the traces "
                 "have no types and sizes",
        "group": "{num_rows} of {total} rows of collectives have no process group: they are taken for collectives of "
                 "all ranks",
        "none": "{num_rows} of {total} rows of collectives are not matched: their ranks are in several process groups, "
                "and nothing says in which of them they were issued",
    },
    codes.EarlierAttempts: "the job was restarted: attempt {shown} is shown, attempt {attempt} ended{why:because} "
                           "(--attempt {attempt} shows it)",
    codes.RecordedLightly: "{full:number} of {of} ranks recorded fully ({full:spans}), the others lightly: timelines, "
                           "operators and counts are of those, and late ranks are told by steps without a timeline"
                           "{parts_counted:uncounted}",
    codes.ScriptInterrupted: "the script was interrupted after everything had been recorded",
    codes.ScriptProfiled: "the script ran its own torch.profiler in {steps:steps} of {ranks:ranks}: nothing was "
                          "recorded there, and its events are as without distprof",
    codes.StepsUneven: "timed steps differ: the longest took {ratio:.0f} x the median one; compilation or "
                       "warm-up? (--steps wait=... waits longer)",
    codes.CountedUnlike: "the counted step had {counted:amount} {unit:unit}, a step has {usual:amount} on average: "
                         "FLOP/s and MFU allow for that, counts are of the counted step",
    codes.FirstStepLeftOut: "step {step} is left out: the profiler warms up in it",
    codes.CulpritsOfAllSteps: "culprits are of all steps: {first}-{last}",
    codes.MergeAlone: "this is a merge without the folders of its ranks: it does not hold what steps were spent on",
}
KINDS = ("what", "status", "doubt")
"""Fields by which a sentence is chosen where a code has several."""
CLOCK_REASONS: dict[codes.ClockReason | None, str] = {
    "asked": "--align none",
    "hosts_unknown": "the hosts of the ranks are not known, and no offsets were measured",
    "no_samples": "the ranks ran on several hosts, and no offsets were measured",
    "samples_do_not_join": "no samples join them with the common clock",
    "too_few_collectives": "fewer than 20 collectives that synchronise join them with the common clock",
    None: "the reason is not known",
}
NAMED = 8
"""Ranks up to which each is named."""
ALIKE: dict[type[Problem], tuple[str, ...]] = {
    codes.Unreadable: ("file",), codes.Unfinished: ("status",), codes.RankFailed: (), codes.FilesMissing: ("files",),
    codes.MemoryEndedEarly: (), codes.NoteOfRank: ("detail",), codes.SeveralTraces: (), codes.TraceDamaged: ("what",),
}
"""What problems of a rank that are the same for a reader have in common."""
FORMATS: dict[str, Callable[[Any], str]] = {
    "ns": duration,
    "of_rank": lambda rank: "" if rank is None else f"rank {rank}: ",
    "unreadable": lambda file: "" if file is None else f"{file} cannot be read: ",
    "ranks": rank_list,
    "where": lambda found: f"; recorded in {', '.join(found)}: name that directory, too" if found else "",
    "lack": lambda ranks: f", none of {rank_list(ranks)}" if ranks else "",
    "names": lambda names: ", ".join(map(str, names)),
    "modules": lambda paths: ", ".join(path or "(root)" for path in paths),
    "first": lambda names: f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are",
    "steps": lambda steps: numbered("step", steps),
    "exit_code": lambda code: "an exception" if code is None else f"exit code {code}" if code >= 0 else
    f"it was ended by signal {-code}",
    "because": lambda why: "" if why is None else f" with {why}",
    "sizes": lambda found: ", ".join(
        f"{number} in {numbered('rank', ranks)}" for number, ranks in sorted(found.items())),
    "reason": lambda reason: CLOCK_REASONS[reason],
    "size": size,
    "number": lambda ranks: str(len(ranks)),
    "spans": lambda ranks: spans(ranks) if ranks else "none",
    "uncounted": lambda known: "" if known else "; they lack a part of the model, whose FLOPs are not known",
    "note": lambda note: "" if note is None else f" ({note})",
    "flags": lambda _: SIZE_FLAGS,
    "amount": "{:.3g}".format,
    "unit": lambda name: name.replace("_", " "),
    "values": lambda keys: f", and values of {keys}" if keys else "",
    "source": lambda names: {"rank": "the rank", "mesh": "tp, pp and dp"}[names],
    "same_rank": lambda contradicted: "several traces claim the same rank: " if contradicted else "",
    "of_some": lambda ranks: f"{len(ranks)} of them ({spans(ranks)})" if 0 < len(ranks) <= NAMED else
    f"{len(ranks)} of them" if ranks else "none",
    "times": lambda known: "" if known is None else f", times of {known[0]} of {counted(known[1], 'call')}",
    "cut": lambda known: "".join(f"; without {number} {what}" for what, number in known.items()),
    "world_size": lambda contradicted: "the world size in the traces does not fit the ranks" if contradicted else
    "no trace states the world size",
}
"""How a field is written, by what stands behind its colon in a sentence; behind `# ` stands what it counts."""


class _Sentences(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("# "):
            return counted(value, format_spec[2:])
        known = FORMATS.get(format_spec)
        return known(value) if known is not None else format(value, format_spec)


def sentence(one: Problem | Remark) -> str:
    """What a code with its fields means."""
    fields, words = msgspec.structs.asdict(one), SENTENCES[type(one)]
    if isinstance(words, dict):
        words = words[next(fields[name] for name in KINDS if name in fields)]
    return _Sentences().vformat(words, (), fields)


def sentences(found: Iterable[Problem | Remark]) -> Iterator[str]:
    """`sentence` of each."""
    return map(sentence, found)


def show_problems(remarks: Iterable[Remark], problems: Iterable[Problem], page: Page) -> None:
    """A line each; of many ranks with the same problem `NAMED`, and one for the others."""
    for text in sentences(remarks):
        page.line(f"note: {text}", style="yellow")
    for text in problem_lines(problems):
        page.line(f"incomplete: {text}", style="yellow")


def problem_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """`sentence` of each; of many ranks with the same problem those of `NAMED`, and one for the others."""
    alike = dict[Any, list[Problem]]()
    for one in problems:
        alike.setdefault(_kind(one), []).append(one)
    for some in alike.values():
        few = some if len(some) <= NAMED + 1 else some[:NAMED]
        yield from sentences(few)
        if len(few) < len(some):
            yield f"likewise for {rank_list(sorted({msgspec.structs.asdict(one)['rank'] for one in some[NAMED:]}))}"


def _kind(one: Problem) -> Any:
    """Equal for problems of ranks that have the fields of `ALIKE` in common."""
    fields = msgspec.structs.asdict(one)
    if type(one) not in ALIKE or fields["rank"] is None:
        return id(one)
    return type(one), *(fields[name] for name in ALIKE[type(one)])
