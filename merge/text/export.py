"""Prints the output of `distprof export`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distprof.contract.problems import Problem, Remark
from distprof.merge.execution.formats.exported import Exported
from distprof.merge.text.problems import show_problems
from distprof.reporters.page import Page
from distprof.units import counted, percent, size, spans


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportShown:
    """What was written."""

    exported: Sequence[Exported]
    step: int | None
    """The exported step; None if the execution traces determine what is exported."""
    left_out: Sequence[int]
    """Ranks that have nothing to export."""
    aligned: bool
    """False if clocks of ranks were never compared."""
    lacking: Mapping[str, int] | None = None
    """What calls lack that were left out of a file for replay -> how many; None for other formats."""


def render(remarks: Sequence[Remark], problems: Sequence[Problem], shown: ExportShown, page: Page) -> str:
    """Returns the screen: a row for each rank, and what is unknown."""
    page.table(("rank", "nodes", "communication", "dependencies", "calls with times", "file"),
               [_row(one) for one in shown.exported], left=1)
    for sentence in (*_whole(shown), *(_unknown(shown.exported) if shown.lacking is None else _for_replay(shown)),
                     *lost(shown)):
        page.line(sentence)
    if remarks or problems:
        page.line()
        show_problems(remarks, problems, page)
    return page.text()


def _row(one: Exported) -> tuple[str, ...]:
    ratio = one.links.ratio if one.links is not None else None
    written = one.written
    dependencies = "-" if written.dependencies is None else f"{written.dependencies:,}"
    return (str(one.number), f"{written.nodes:,}", f"{written.communication:,}", dependencies,
            "-" if ratio is None else percent(ratio), str(one.file))


def _whole(shown: ExportShown) -> list[str]:
    found = []
    if shown.step is not None:
        found.append(f"step {shown.step}, the last step of the trace pass")
    if not shown.aligned and shown.lacking is None:
        found.append("the clocks of the ranks were never compared: start times of different ranks are not comparable")
    return found


def lost(shown: ExportShown) -> list[str]:
    """Returns what was, or should have been, recorded of the job and is not complete in the files."""
    found, exported = [], shown.exported
    if shown.left_out:
        found.append(f"ranks skipped, with neither an execution trace nor a timeline: {spans(shown.left_out)}")
    unseen = sum(one.unseen for one in exported)
    if unseen:
        found.append(f"{counted(unseen, 'collective')} skipped: the timeline does not show their work")
    found += [f"{counted(number, 'call')} skipped on all their ranks, for lack of {what}"
              for what, number in (shown.lacking or {}).items()]
    return found + (_lost_calls(exported) if shown.lacking is None else []) + _cut(exported)


def _lost_calls(exported: Sequence[Exported]) -> list[str]:
    found = []
    untimed = sum(one.untimed_calls for one in exported)
    nameless = sum(one.written.without_group for one in exported)
    if untimed:
        found.append(f"{counted(untimed, 'call')} of communication {'has' if untimed == 1 else 'have'} no time: the "
                     "execution traces have them, the timelines do not")
    if nameless:
        found.append(f"{counted(nameless, 'node')} of an unknown process group")
    partial = _partial(exported)
    if partial:
        found.append(f"{counted(len(partial), 'collective')} {'is' if len(partial) == 1 else 'are'} missing on some of "
                     f"{'its' if len(partial) == 1 else 'their'} ranks: a simulator may wait for those forever")
    return found


def _partial(exported: Sequence[Exported]) -> set[int]:
    """Returns collectives that files lack: those that timelines lack, unless execution traces have them."""
    made_up = any(one.untimed_calls for one in exported)
    return {number for one in exported for number, op in one.partial
            if not made_up or len({other.calls.get(op, 0) for other in exported}) > 1}


def _for_replay(shown: ExportShown) -> list[str]:
    found = ["for comm_replay --trace-type et --trace-path DIR: only communication and its dependencies"]
    if not any(one.written.communication for one in shown.exported):
        found.append("no communication is left: timelines show none with a known end")
    return found


def _cut(exported: Sequence[Exported]) -> list[str]:
    cut = [str(one.number) for one in exported if one.is_cut]
    found = [f"execution traces are cut off on rank {', '.join(cut)}: later calls are missing"] if cut else []
    damaged = [f"rank {one.number} ({size(one.lost_bytes)})" for one in exported if one.lost_bytes and not one.is_cut]
    if damaged:
        found.append(f"execution traces are damaged, and calls are missing: {', '.join(damaged)} cannot be read")
    return found


def _unknown(exported: Sequence[Exported]) -> list[str]:
    found = []
    if all(one.links is None for one in exported):
        found.append("no execution traces: dependencies come from the order in threads and streams, launches and "
                     "waits; tensor dependencies are unknown (record them with distprof run --execution-trace)")
    if any(one.links is not None and one.links.linked_by == "order" for one in exported):
        found.append("slices have no call numbers: each call was matched to the slice with its name in the same "
                     "order; calls without a slice are not in the timeline")
    foreign = [str(one.number) for one in exported if len(one.processes) > 1]
    if foreign:
        found.append(f"the execution trace and the timeline of rank {', '.join(foreign)} have different process "
                     "numbers: they may be of two ranks or runs that do the same")
    lacking = [str(one.number) for one in exported if one.links is not None and not one.links.num_linked]
    if lacking:
        found.append(f"no timeline has calls from the execution trace of rank {', '.join(lacking)}: its nodes have no "
                     "times, and communication is known by names alone")
    alone = [str(one.number) for one in exported if one.links is None]
    if alone and len(alone) < len(exported):
        found.append(f"no execution trace of rank {', '.join(alone)}: tensor dependencies are unknown there")
    for name, what in (("untimed", "without a time"), ("without_type", "of a kind that the format lacks, or with an "
                                                                       "unknown peer: written as computation")):
        number = sum(getattr(one.written, name) for one in exported)
        if number:
            found.append(f"{counted(number, 'node')} {what}")
    unread = sum((one.written.unread for one in exported), Counter[str]())
    if unread:
        ops = ", ".join(f"{op} {number}" for op, number in sorted(unread.items()))
        found.append(f"{counted(unread.total(), 'call')} of communication of a kind that chakra_converter does not "
                     f"know: written as computation ({ops}); --format chakra has "
                     f"{'it' if unread.total() == 1 else 'them'}")
    blind = sum(one.blind_waits for one in exported)
    if blind:
        found.append(f"{counted(blind, 'stream wait')} without the event that ends it: dependencies between streams "
                     "are missing (torch.profiler records them with enable_cuda_sync_events=True in its "
                     "experimental_config)")
    return found
