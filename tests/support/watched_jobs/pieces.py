"""What ranks would have appended to their files, at once or as time goes by."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.contract.watch import Note, SampledStep
from distprof.merge.watch.pieces import Piece, Sample

from .job import Job, S
from .play import Played

ROW_NS = 0.2 * S
BEGAN_NS = 1_700_000_000 * S
GIB = 1 << 30
OPS = ["all_reduce", "send", "recv"]


def rows_of(played: Played, rank: int) -> dict[str, Any]:
    """All rows of a rank: each covers at least 0.2 s."""
    job, end = played.job, played.end_ns[:, rank]
    last = job.num_steps if job.stops is None or job.stops[0] != rank else job.stops[1]
    span, begin = np.diff(end, prepend=0.0), 0
    bounds = [0]
    while begin < last:
        before = end[begin - 1] if begin else 0.0
        begin = int(np.searchsorted(end, before + ROW_NS)) + 1
        if begin <= last:
            bounds.append(begin)
    first, after = np.array(bounds[:-1]), np.array(bounds[1:])

    def summed(of: Any) -> Any:
        total = np.append(0, np.cumsum(of))
        return np.round(total[after] - total[first]).astype(np.int64)

    longest = np.array([low + int(np.argmax(span[low:high])) for low, high in zip(first, after, strict=True)], np.int64)
    leak = job.leak_bytes[1] if job.leak_bytes and job.leak_bytes[0] == rank else 0.0
    draw = np.random.default_rng(job.seed + 7 * rank)
    leaked = leak * np.maximum(0, after - job.leaks_from)
    memory = 2 * GIB + GIB * (1 - np.exp(-after / 200)) + leaked + draw.normal(0, 5e6, len(after))
    columns = {"first_step": first, "num_steps": after - first, "end_ns": BEGAN_NS + end[after - 1],
               "span_ns": summed(span), "longest_ns": span[longest], "longest_step": longest}
    for place, name in enumerate(("data_ns", "forward_ns", "backward_ns", "optimizer_ns")):
        columns[name] = summed(played.phases_ns[:, rank, place])
    columns |= {"device_ns": np.full(len(first), -1), "cpu_ns": columns["span_ns"], "switches": np.zeros(len(first)),
                "gc_ns": np.zeros(len(first)), "host_bytes": memory, "device_bytes": np.full(len(first), GIB)}
    if job.ahead:
        columns |= _of_hosts_ahead(job, columns)
    return {name: np.asarray(values).astype(np.int64) for name, values in columns.items()}


def _of_hosts_ahead(job: Job, columns: dict[str, Any]) -> dict[str, Any]:
    """These rows on a device, as a host notes them that is ahead of it by another time at the end of each row."""
    first, span = columns["first_step"], columns["span_ns"].astype(float)
    lead = np.random.default_rng(job.seed).uniform(0, job.ahead * job.step_ns, len(span))
    noted = np.maximum(span - np.diff(lead, prepend=0), span / 2)
    hundredth = (first + columns["num_steps"] - 1) // 100 * 100
    waits = hundredth >= first
    found = {name: columns[name] * noted / span for name in ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")}
    return found | {"device_ns": span, "span_ns": noted, "end_ns": columns["end_ns"] - lead,
                    "longest_ns": np.where(waits, job.ahead * job.step_ns, columns["longest_ns"]),
                    "longest_step": np.where(waits, hundredth, columns["longest_step"])}


def samples_of(played: Played, rank: int) -> list[Sample]:
    """Its sampled steps."""
    job, found = played.job, []
    names = [name for name, ranks in played.groups.items() if rank in ranks]
    groups = [(name, played.groups[name]) for name in names]
    for step, calls in sorted(played.calls.items()):
        if job.stops and job.stops[0] == rank and step >= job.stops[1]:
            break
        end, mine = played.end_ns[step, rank], calls[rank]
        span = float(played.phases_ns[step, rank].sum())
        found.append(Sample(groups=groups, names=OPS, step=SampledStep(
            step=step, start_ns=int(BEGAN_NS + end - span), span_ns=int(span), num_calls=len(mine),
            group=[names.index(one[0]) for one in mine], op=[OPS.index(one[1]) for one in mine],
            arrived_ns=[int(one[2]) for one in mine], took_ns=[int(one[3]) for one in mine],
            blocked_ns=[int(one[4]) if job.blocked_known else -1 for one in mine])))
    return found


def notes_of(played: Played) -> list[Note]:
    """Which pauses were evaluations."""
    job = played.job
    steps = range(job.pause_every - 1, job.num_steps, job.pause_every) if job.pause_every and job.evaluation else ()
    return [Note(time_ns=int(BEGAN_NS + played.end_ns[step, 0]), step=step, kind="evaluation") for step in steps]


class Ranks:
    """Gives what is new by a time, rank by rank."""

    def __init__(self, played: Played) -> None:
        """Of the whole job."""
        self.job = played.job
        self._rows = [rows_of(played, rank) for rank in range(played.job.world)]
        self._samples = [samples_of(played, rank) for rank in range(played.job.world)]
        self._notes = notes_of(played)
        self._given = [(0, 0, 0)] * played.job.world
        self.end_ns = float(played.end_ns[-1].max())
        self._played = played

    def new(self, rank: int, now_ns: float) -> Piece:
        """What the rank noted until then; frames come every 3 s."""
        rows, samples, (row, sample, note) = self._rows[rank], self._samples[rank], self._given[rank]
        frame = now_ns if now_ns >= self.end_ns else np.floor(now_ns / (3 * S)) * 3 * S
        end = int(np.searchsorted(rows["end_ns"], BEGAN_NS + frame, side="right"))
        last = int(rows["first_step"][end - 1] + rows["num_steps"][end - 1]) if end else 0
        until = next((place for place in range(sample, len(samples)) if samples[place].step.step >= last), len(samples))
        noted = next((place for place in range(note, len(self._notes)) if self._notes[place].step >= last),
                     len(self._notes))
        self._given[rank] = end, until, noted
        return Piece(columns={name: values[row:end] for name, values in rows.items()}, samples=samples[sample:until],
                     notes=self._notes[note:noted])
