"""Claims about the job on GPUs: copies, kernels of known duration, streams, a CUDA graph, sums of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import polars as pl

from distprof.contract.passes import TIME, TRACE
from distprof.contract.paths import TRACE_JSON
from distprof.launch.selftest.evidence import Claim, Evidence, Judged, exact, near, read_events, same
from distprof.launch.selftest.host_claims import (
    collective,
    cost,
    late,
    lateness,
    module_flops,
    module_time,
    product_calls,
    product_flops,
    step_time,
)

Slice = dict[str, Any]
SPIN = "spin_kernel"
"""Occurs in the name of the kernel that torch.cuda._sleep runs."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device work of one rank, ordered by start."""

    rank: int
    slices: list[Slice]

    @property
    def _all_spins(self) -> list[Slice]:
        return [one for one in self.slices if SPIN in one["name"]]

    @property
    def spins(self) -> list[Slice]:
        """The first spin kernel of each step, on the main stream."""
        return self._all_spins[::2]

    @property
    def side_spins(self) -> list[Slice]:
        """The second spin kernel of each step, on the side stream."""
        return self._all_spins[1::2]

    @property
    def has_two_streams(self) -> bool:
        """Whether both kinds of spin kernels are on one stream each, and the streams differ."""
        main, side = ({_stream(one) for one in some} for some in (self.spins, self.side_spins))
        return len(main) == len(side) == 1 and main != side

    def copies(self, kind: str) -> list[Slice]:
        """Returns the copies in one direction, such as `HtoD`."""
        return [one for one in self.slices if one["cat"] == "gpu_memcpy" and kind in one["name"]]

    def gaps_ns(self) -> Iterator[float]:
        """Yields, for each spin kernel of the side stream, how long the main stream is idle around it."""
        main = [one for one in self._main() if one["cat"] == "kernel"]
        for spin in self.side_spins:
            before = [_end(one) for one in main if one["ts"] < spin["ts"]]
            after = [float(one["ts"]) for one in main if one["ts"] >= spin["ts"]]
            if before and after:
                yield (min(after) - max(before)) * 1e3

    def meanwhile(self) -> int:
        """Returns the number of kernels of the main stream that overlap spin kernels of the side stream."""
        main = [one for one in self._main() if one["cat"] == "kernel"]
        return sum(float(one["ts"]) < _end(spin) and _end(one) > float(spin["ts"])
                   for spin in self.side_spins for one in main)

    def _main(self) -> list[Slice]:
        streams = {_stream(one) for one in self.spins}
        return [one for one in self.slices if _stream(one) in streams]


def devices(evidence: Evidence) -> list[Device]:
    """Returns the device work of each rank."""
    ranks = evidence.rank_of_process
    slices: dict[int, list[Slice]] = {one.rank: [] for one in evidence.planted}
    for one in evidence.trace:
        if one.get("cat") in ON_DEVICE and ranks.get(one["pid"]) in slices:
            slices[ranks[one["pid"]]].append(one)
    return [Device(rank=rank, slices=found) for rank, found in slices.items()]


def _end(one: Slice) -> float:
    return float(one["ts"]) + float(one["dur"])


def _stream(one: Slice) -> Any:
    return one["args"].get("stream")


KINDS = {"up": "HtoD", "down": "DtoH", "across": "DtoD"}
"""Kind of copy -> text in the names of its slices."""
ROUNDING_NS, ROUNDING = 1e3, 1e-6
"""Absolute and relative tolerance for sums of the same durations."""


def copied(size: str, kind: str) -> Callable[[Evidence], Judged]:
    """Returns a check of the number of copies in the merged timeline, and of their bytes (the fact `size`)."""
    def judge(evidence: Evidence) -> Judged:
        size_bytes = evidence.facts[size]
        alike = [one for device in devices(evidence) for one in device.copies(kind)]
        found = sum(int(one["args"].get("bytes", 0)) == size_bytes for one in alike)
        expected = evidence.num_traced * len(evidence.planted)
        return Judged(f"{expected} of {size_bytes:,} B", f"{found} of {size_bytes:,} B" if found or not alike else
                      f"others: {sorted({int(one['args'].get('bytes', 0)) for one in alike})[:5]}", found == expected)

    return judge


def _spin_length(evidence: Evidence) -> Judged:
    return _length(evidence, "spin", lambda device: device.spins)


def _side_length(evidence: Evidence) -> Judged:
    return _length(evidence, "side", lambda device: device.side_spins)


def _length(evidence: Evidence, part: str, kernels: Callable[[Device], list[dict[str, Any]]]) -> Judged:
    found = [float(one["dur"]) * 1e3 for device in devices(evidence) for one in kernels(device)]
    expected = evidence.num_traced * len(evidence.planted)
    judged = near(evidence.planted_ns(part, evidence.steps_of(TRACE)), fmean(found) if found else None)
    counted = judged._replace(found=f"{judged.found}, {len(found)} kernels",
                              expected=f"{judged.expected}, {expected} kernels")
    return counted if len(found) == expected else counted._replace(holds=False)


def _own_stream(evidence: Evidence) -> Judged:
    """Checks that the two kernels of known duration of each rank are on different streams."""
    apart = [device.rank for device in devices(evidence) if device.has_two_streams]
    return same(_ranks(one.rank for one in evidence.planted), _ranks(apart))


def _stands_still(evidence: Evidence) -> Judged:
    """Checks the idle time of the main stream while it waits for the side stream."""
    gaps = [gap for device in devices(evidence) for gap in device.gaps_ns()]
    return near(evidence.planted_ns("side", evidence.steps_of(TRACE)), fmean(gaps) if gaps else None)


def _meanwhile(evidence: Evidence) -> Judged:
    found = devices(evidence)
    if not any(device.side_spins for device in found):
        return Judged("0 kernels", "no kernel on a side stream", False)
    return exact(0, sum(device.meanwhile() for device in found), "kernels")


def _of_graph(evidence: Evidence) -> pl.DataFrame:
    return evidence.ops.filter(pl.col("type") == "kernel", pl.col("launched_by").str.contains("GraphLaunch"))


def _graph(evidence: Evidence) -> Judged:
    """Checks the number of kernels of the graph in each step and rank, according to `ops`."""
    counts = _of_graph(evidence).group_by("rank", "step").agg(pl.col("calls").sum())
    whole = len(counts.filter(pl.col("step").is_not_null())) == evidence.num_traced * len(evidence.planted)
    numbers = {*counts["calls"].to_list(), *([] if whole else [0])}
    return same(f"{evidence.facts['graph_kernels']} per step",
                f"{' or '.join(map(str, sorted(numbers)))} per step")


def _all_kernels(evidence: Evidence) -> Judged:
    """Compares the number of kernels in `ops` with the files of torch's profiler."""
    written = [one for rank in evidence.planted for one in _written(evidence, rank.rank)]
    found = exact(len(written), int(evidence.ops.filter(pl.col("type") == "kernel")["calls"].sum()), "kernels")
    return found if written else found._replace(holds=False)


def _all_kernel_time(evidence: Evidence) -> Judged:
    written = [one for rank in evidence.planted for one in _written(evidence, rank.rank)]
    found = evidence.ops.filter(pl.col("type") == "kernel")["self_device_ns"].sum()
    judged = near(sum(float(one["dur"]) for one in written) * 1e3, float(found), ROUNDING_NS, ROUNDING)
    return judged if written else judged._replace(holds=False)


def _written(evidence: Evidence, rank: int) -> Iterator[Mapping[str, Any]]:
    events = read_events(evidence.run / f"rank{rank:05d}" / TRACE_JSON)
    return (one for one in events if one.get("ph") == "X" and one.get("cat") == "kernel")


def _chain(evidence: Evidence) -> Judged:
    """Compares the total time of back-to-back kernels of one module with events around them."""
    kernels = evidence.ops.filter(pl.col("type") == "kernel", pl.col("launched_by") == "aten::bmm")
    sum_ns = float(kernels["self_device_ns"].sum()) / evidence.num_traced / len(evidence.planted)
    return near(evidence.planted_ns("chain", evidence.steps_of(TRACE)), sum_ns)


def _chain_flops(evidence: Evidence) -> Judged:
    expected = fmean(one.facts["chain_flops"] for one in evidence.planted)
    return exact(expected, evidence.module("chain")["fwd_flops_mean"], "FLOPs")


def kernels_of_products(evidence: Evidence) -> Judged:
    """Checks that matrix products of all ranks have device work, also if ranks share a GPU."""
    found = evidence.ops.filter(pl.col("op") == "aten::mm", pl.col("type") == "operator", pl.col("self_device_ns") > 0)
    return same(_ranks(one.rank for one in evidence.planted), _ranks(found["rank"].unique().to_list()))


def _on_device(evidence: Evidence) -> Judged:
    return same(evidence.facts["device"], evidence.facts["communicates_on"])


def _ranks(numbers: Any) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


SHARED = (
    Claim(text="copies to the device", judge=copied("copy_bytes", "HtoD")),
    Claim(text="ranks whose products run as kernels", judge=kernels_of_products),
    Claim(text="collectives on GPU tensors", judge=_on_device, part="gloo"),
)
"""Claims about two ranks on one GPU, in addition to those on CPUs."""
ALONE = (
    Claim(text="FLOPs of a product in forward", judge=module_flops("product", "fwd", product_flops)),
    Claim(text="FLOPs of a product in backward", judge=module_flops("product", "bwd", product_flops)),
    Claim(text="FLOPs of many products", judge=_chain_flops, part="chain"),
    Claim(text="products in the timeline", judge=product_calls),
    Claim(text="ranks whose products run as kernels", judge=kernels_of_products),
    Claim(text="copies to the device", judge=copied("up_bytes", KINDS["up"]), part="copies"),
    Claim(text="copies from the device", judge=copied("down_bytes", KINDS["down"]), part="copies"),
    Claim(text="copies within the device", judge=copied("across_bytes", KINDS["across"]), part="copies"),
    Claim(text="a long kernel, timed by events", judge=_spin_length, part="spin"),
    Claim(text="module spin, by its own timers", judge=module_time("spin", "fwd", "spin"), part="spin"),
    Claim(text="a long kernel on a side stream, timed by events", judge=_side_length, part="side"),
    Claim(text="ranks whose side stream is a stream of its own", judge=_own_stream, part="side"),
    Claim(text="time that the main stream waits for it", judge=_stands_still, part="side"),
    Claim(text="kernels on the main stream meanwhile", judge=_meanwhile, part="side"),
    Claim(text="kernels of CUDA graphs", judge=_graph, part="graph"),
    Claim(text="kernels of many products, timed by events", judge=_chain, part="chain"),
    Claim(text="module chain, by its own timers", judge=module_time("chain", "fwd", "chain"), part="chain"),
    Claim(text="all kernels, compared with torch's own traces", judge=_all_kernels),
    Claim(text="their time, compared with torch's own traces", judge=_all_kernel_time),
    Claim(text="all_reduce", judge=collective("all_reduce", "reduces", "reduced_bytes"), part="collectives"),
    Claim(text="broadcast", judge=collective("broadcast", "", "sent_bytes"), part="collectives"),
    Claim(text="step time", judge=step_time),
    Claim(text="the rest of a step with timers", judge=cost(TIME)),
    Claim(text="the rest of a step with a timeline", judge=cost(TRACE)),
)
"""Claims about one or several ranks, each with its own GPU."""
AMONG_SEVERAL = (
    Claim(text="late rank, its module and line", judge=late),
    Claim(text="how late it is", judge=lateness),
)
"""Additional claims about several ranks, each with its own GPU."""
