"""The end of a job: writes it to run.json, and prints the answer of the merge or the next commands."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from distprof.compiled.library import is_built
from distprof.contract import rank_json
from distprof.contract.paths import MERGED, PARTIAL_SUFFIX, RANK_JSON, RUN_JSON, TRACE_JSON, rank_files, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RanksDirectory, RunJson
from distprof.errors import DataError, DistprofError
from distprof.launch.final_merge import final_merge
from distprof.launch.hosts.protocol import Gathered
from distprof.launch.what_next import next_commands
from distprof.recording.job.claim import about_run, locked
from distprof.recording.run_directory import MERGING
from distprof.storage.listing import LISTINGS
from distprof.terminal import quoted, quoted_all, say
from distprof.units import counted, spans

if TYPE_CHECKING:
    from distprof.storage.remote_path import RemotePath

OTHERS_S, LOOK_S = 30.0, 0.2
"""How long the launcher of a host waits for the ranks of other hosts, and how often it checks, in seconds."""
AfterMerge = Callable[[Path], None]
"""Gets the run directory after the merge."""


def finish(directory: Path, started: RunJson, code: int, failed: Mapping[str, int], *, merges: bool,
           after_merge: AfterMerge | None = None, uploaded_to: str | None = None,
           job_lines: Sequence[str] = (), is_alone: bool = True, gathered: Gathered | None = None) -> None:
    """Writes the end of the job to run.json, and prints what was recorded and the answer or the next command.

    Args:
        directory: The run directory.
        started: Contents of run.json at the start.
        code: Exit code of the job. A failed job is usually not merged, because that may take long. A job that the user
            interrupted after everything was recorded did not fail.
        failed: Fields of run.json about the rank that failed first.
        merges: Whether a merge is allowed.
        after_merge: Called instead of printing the answer and the next commands, which are not printed for a failed job
            either.
        uploaded_to: URL to which all hosts of the job upload their ranks; None if they do not.
        job_lines: Findings of the watch about all steps of the job; printed after the answer.
        is_alone: Whether the job ran on one host only; else the first launcher that finds all ranks merges them.
        gathered: If hosts share no directory: the result of copying their files.
    """
    interrupted = _was_interrupted(code, directory, started)
    if gathered is not None:
        _forget_copied(directory, gathered)
    about = _write_end(directory, started, code, {"interrupted": True} if interrupted else failed)
    closed, cut = (len(list(rank_files(directory, RANK_JSON, suffix))) for suffix in ("", PARTIAL_SUFFIX))
    ranks = counted(closed, "rank") if about.world_size is None else f"{closed} of {counted(about.world_size, 'rank')}"
    done = f"{ranks} recorded{f', {cut} unfinished' if cut else ''}."
    if cut and not is_built():
        done += " Without the compiled library, a rank that is stopped keeps only what it had written."
    others = [one for one in about.directories if one.identity != about.directory_id and not _are_here(directory, one)]
    if gathered is not None and gathered.role == "copied" and uploaded_to is None:
        say(f"{done} Copied to {gathered.place}, where the answer is printed. The files also stay here.")
    elif gathered is not None and gathered.role == "first" and uploaded_to is None:
        _finish_first(directory, started, gathered, done, after_merge, job_lines, merges=merges,
                      has_failed=bool(code) and not interrupted)
    elif (not closed and not cut) or (after_merge is not None and code):
        say(done, *_indented(job_lines))
    elif merges and (interrupted or not code) and not others and not is_alone and uploaded_to is None:
        _merge_once(directory, started, done, after_merge, job_lines)
    elif merges and (interrupted or not code) and not others and is_alone:
        say(f"{done}{' The script was interrupted after that.' if interrupted else ''} "
            f"Merging{' (skip with --no-merge)' if after_merge is None else ''}")
        _merge(directory, after_merge, job_lines)
    else:
        if job_lines:
            say(*job_lines)
        _say_next(done, directory, others, has_failed=code != 0 and not interrupted, uploaded_to=uploaded_to,
                  merges=merges and not code and after_merge is None)


def _are_here(directory: Path, one: RanksDirectory) -> bool:
    """Returns whether all ranks of another host were copied to this directory."""
    return all((directory / rank_folder(rank)).is_dir() for rank in one.ranks)


def _forget_copied(directory: Path, gathered: Gathered) -> None:
    """Removes what other hosts copied here only for the watch, because they upload it themselves."""
    for place in gathered.places:
        for name in (place, f"{place}{PARTIAL_SUFFIX}"):
            if (directory / name).is_dir():
                shutil.rmtree(directory / name, ignore_errors=True)
            else:
                (directory / name).unlink(missing_ok=True)


def _finish_first(directory: Path, started: RunJson, gathered: Gathered, done: str, after_merge: AfterMerge | None,
                  job_lines: Sequence[str], *, merges: bool, has_failed: bool) -> None:
    """Ends the job on the first host, to which other hosts copied their files.

    A failed job is merged only if files of a host are missing.
    """
    for end in gathered.ends:
        about = about_run(directory)
        if end.exit_code and about is not None:
            has_failed = has_failed or not _was_interrupted(end.exit_code, directory, started)
            _write_end(directory, about, end.exit_code, {"interrupted": not has_failed,
                                                         **(end.failed if has_failed else {})})
    if gathered.missing:
        say(f"without {', '.join(gathered.missing)}: "
            f"{'its' if len(gathered.missing) == 1 else 'their'} files did not all arrive")
    if not merges or (has_failed and not gathered.missing) or not any(rank_files(directory, RANK_JSON)):
        if job_lines:
            say(*job_lines)
        _say_next(done, directory, (), has_failed=has_failed, uploaded_to=None)
        return
    say(f"{done} Merging{' (skip with --no-merge)' if after_merge is None else ''}")
    _merge(directory, after_merge, job_lines)


def merge_uploaded(target: RemotePath, job_lines: Sequence[str]) -> None:
    """Merges what all hosts uploaded, unless some are not done yet or another one is already merging.

    Args:
        target: URL of the run, to which this host has uploaded everything.
        job_lines: Findings of the watch about all steps of the job.
    """
    from distprof.launch.upload.job_upload import claimed, unclaimed

    try:
        merges = claimed(target)
    except (DistprofError, OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"cannot check whether all hosts have uploaded their files: {error.args[0] if error.args else error}"
        merges = False
    else:
        why = "other hosts have not uploaded everything yet, or another launcher merges them"
    if not merges:
        say(f"not merged here: {why}. If no other launcher does it:", f"    distprof merge {quoted(target)}")
        return
    say("all hosts have uploaded their files. Merging (skip with --no-merge)")
    try:
        _merge(target, None, job_lines)
    finally:
        LISTINGS.forget(target.url)
        if not (target / MERGED).is_dir():
            unclaimed(target)


def _say_next(done: str, directory: Path, others: Sequence[RanksDirectory], *, has_failed: bool,
              uploaded_to: str | None, merges: bool = False) -> None:
    """Prints the next commands if nothing is merged here."""
    if others and uploaded_to is not None:
        if merges and not has_failed:
            say(f"{done} The launcher that ends last merges those of all hosts.")
        else:
            say(f"{done} Next, once all hosts have uploaded their ranks:",
                *_indented([f"distprof merge {quoted(uploaded_to)}"]))
        return
    where = "; ".join(f"rank{'s' if len(one.ranks) > 1 else ''} {spans(one.ranks)} in {', '.join(one.hosts)}:{one.path}"
                      for one in others)
    following = [f"distprof merge {quoted_all([directory, *(one.path for one in others)])}"]
    if has_failed and not others:
        shows = ("comms", "report") if any(one.num_steps for one in _ranks(directory)) else ("comms",)
        following += [f"distprof {name} {quoted(directory)}" for name in shows]
    first = f"The other ranks: {where}. Next, once you have copied those here:" if others else "Next:"
    say(f"{done} {first}", *_indented(following))


def _merge_once(directory: Path, started: RunJson, done: str, after_merge: AfterMerge | None,
                job_lines: Sequence[str]) -> None:
    """Merges the ranks of hosts that share a directory, unless the launcher of another host does."""
    until = time.monotonic() + OTHERS_S
    while not _is_whole(directory, started):
        if time.monotonic() > until:
            missing = "ranks of other hosts are not complete yet"
            say(f"{done} Not merged: {missing}. Next:", *_indented([f"distprof merge {quoted(directory)}", *job_lines]))
            return
        time.sleep(LOOK_S)
    merging = directory / MERGING
    try:
        merging.mkdir()
    except OSError:
        say(f"{done} Another host merges them.", *_indented(job_lines))
        return
    try:
        say("all ranks of all hosts are recorded. Merging (skip with --no-merge)")
        _merge(directory, after_merge, job_lines)
    finally:
        with suppress(OSError):
            if not (directory / MERGED).is_dir():
                merging.rmdir()  # another launcher may still try


def _merge(directory: Path, after_merge: AfterMerge | None, job_lines: Sequence[str]) -> None:
    """Merges and prints the answer; if the merge fails, the command to repeat it."""
    began = time.monotonic()
    try:
        answer = final_merge(directory)
    except Exception as error:  # noqa: BLE001 (the exit code stays that of the script)
        say(f"cannot merge: {error}", *_indented(job_lines))
        return
    if answer is None:
        say("not merged. Next:", *_indented([f"distprof merge {quoted(directory)}"]))
        return
    merged = directory / MERGED
    opened = f"; open its {TRACE_JSON} in https://ui.perfetto.dev" if (merged / TRACE_JSON).is_file() else ""
    job_lines = () if set(job_lines[:1]) <= set(answer) else job_lines  # the answer may have them already
    lines = () if after_merge is not None else (*_indented([*answer, *job_lines]), "Next:",
                                                *_indented(next_commands(directory)))
    say(f"merged in {time.monotonic() - began:.1f} s into {quoted(merged)}{opened}", *lines)
    if after_merge is not None:
        after_merge(directory)


def _was_interrupted(code: int, directory: Path, started: RunJson) -> bool:
    """Returns whether the user interrupted the job after everything was recorded, which is no failure."""
    return code == 128 + signal.SIGINT and _is_whole(directory, started)


def _is_whole(directory: Path, started: RunJson) -> bool:
    """Returns whether all ranks of the job completed their recording."""
    ranks = [one for one in _ranks(directory) if one.status == "complete"]
    return bool(ranks) and len(ranks) == (started.world_size or ranks[0].world_size)


def _ranks(directory: Path) -> Iterator[RankJson]:
    for path in directory.glob(f"rank*/{RANK_JSON}"):
        with suppress(DataError):  # the merge will report it
            yield rank_json.read(path, RankJson)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _write_end(directory: Path, started: RunJson, code: int, failed: Mapping[str, Any]) -> RunJson:
    """Adds the end to run.json, which ranks and launchers of other nodes also write; the earliest failure is kept."""
    def ended(about: RunJson) -> RunJson:
        earlier = about.failed_ns is not None and about.failed_ns <= failed.get("failed_ns", about.failed_ns)
        return replace(about, end_ns=time.time_ns(), exit_code=code or about.exit_code or 0,
                       **({} if earlier else failed))

    try:
        with locked(directory):
            about = ended(about_run(directory) or started)
            rank_json.write(directory / RUN_JSON, about)
    except OSError as error:  # must not change the exit code of the job
        say(f"cannot write {directory / RUN_JSON}: {error.strerror}")
        return started
    return about
