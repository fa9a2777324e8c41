"""Chains beside a simulation: what is on them shortens the step when it gets shorter, and nothing else does."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.activity.device.commands import commands_of
from distprof.merge.activity.device.rank_device import WINDOWS
from distprof.merge.critical.device.dependencies import as_one_thread, dependencies
from distprof.merge.critical.device.graph import device_graph
from distprof.merge.critical.device.path import device_path
from distprof.merge.critical.device.walk import HOST, RUNNING
from support.device_simulation import Simulation

SCHEMA = {"name": pl.String, "category": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64,
          "correlation": pl.Int64, "process": pl.String, "thread": pl.String}
D_NS = 1_000
UNLIMITED = 10**9


class Changed(Simulation):
    """The same with one command or one piece of the host's work shorter; `change`: which, its number, by how much."""

    def __init__(self, seed, change=(None, 0, 0), **options):
        self.change, self.works = change, []
        super().__init__(seed, **options)

    def less(self, what, number):
        return self.change[2] if self.change[:2] == (what, number) else 0

    def work(self):
        begun = self.now_ns
        super().work()
        self.now_ns -= self.less("work", len(self.works))
        self.works.append((begun, self.now_ns))

    def run(self, stream, kind, correlation, duration_ns, *, noted=True):
        duration_ns -= self.less("command", len(self.commands))
        return super().run(stream, kind, correlation, duration_ns, noted=noted)

    def things(self, window):
        """Whole pieces of work and commands in a step: what, number, start, end."""
        found = [("work", number, *one) for number, one in enumerate(self.works)]
        found += [("command", number, one.start_ns, one.end_ns) for number, one in enumerate(self.commands)]
        return [one for one in found if window[0] <= one[2] and one[3] <= window[1] and one[3] - one[2] > D_NS]


def slices(job):
    return pl.DataFrame(list(job.slices()), schema=SCHEMA, orient="row").with_columns(
        sequence_number=pl.lit(None, pl.Int64))


def path_of(job):
    windows = pl.DataFrame([(number, *mark, True) for number, mark in enumerate(job.marks)], schema=WINDOWS,
                           orient="row")
    return device_path(0, slices(job), windows)


def pieces(links, kinds):
    return list(links.filter(pl.col("kind").is_in(kinds)).select("start_ns", "end_ns").iter_rows())


def said_of(thing, links):
    """What the step gains by a thing that is shorter: all of it, nothing, or None where it is on the chain in part."""
    what, _, start, end = thing
    if what == "command":
        return D_NS if (start, end) in pieces(links, RUNNING) else 0
    covered = sum(max(min(stop, end) - max(begun, start), 0) for begun, stop in pieces(links, [HOST]))
    return D_NS if covered >= end - start else 0 if covered == 0 else None


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_links_follow_each_other_and_add_up_to_the_step(seed):
    job = Simulation(seed)
    path = path_of(job)
    for step, window in job.spans().items():
        row = path.steps.filter(pl.col("step") == step).row(0, named=True)
        links = path.links.filter(pl.col("step") == step)
        assert (row["start_ns"], row["end_ns"]) == window == (links["start_ns"][0], links["end_ns"][-1])
        assert (links["start_ns"][1:] == links["end_ns"][:-1]).all() and (links["end_ns"] > links["start_ns"]).all()


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_replay_without_changes_gives_the_times_that_were_measured(seed):
    commands = commands_of(as_one_thread(slices(Simulation(seed))))
    graph = device_graph(commands, dependencies(commands))
    replayed, number = graph.times(graph.took_ns, graph.after_ns), 2 * len(commands.start_ns)
    assert (replayed == graph.at_ns - graph.origin_ns)[:number].all(), "commands and launches"


@pytest.mark.long
@pytest.mark.parametrize("limit", [UNLIMITED, 24])
def test_what_is_on_the_chain_shortens_the_step_and_nothing_else_does(limit):
    """Of a queue with room for 24 commands, calls that launch wait for the device as well."""
    found = Counter()
    for seed in range(60):
        job, chance = Changed(seed, limit=limit), random.Random(seed)
        links = path_of(job).links
        for step, window in job.spans().items():
            things = job.things(window)
            for thing in chance.sample(things, min(len(things), 4)):
                said = said_of(thing, links.filter(pl.col("step") == step))
                after = Changed(seed, (*thing[:2], D_NS), limit=limit).spans()[step]
                gained = (window[1] - window[0]) - (after[1] - after[0])
                if said is not None:
                    found[thing[0], said, abs(gained - said) <= 20] += 1
    for key in (("command", D_NS), ("command", 0), ("work", D_NS)):
        right, wrong = found[*key, True], found[*key, False]
        assert right > 40 and right >= (0.97 if limit == UNLIMITED else 0.93) * (right + wrong), (key, found)
    right = sum(number for key, number in found.items() if key[2])
    assert right >= (0.98 if limit == UNLIMITED else 0.95) * found.total(), found


@pytest.mark.long
def test_commands_off_the_chain_may_take_as_much_longer_as_their_slack():
    found = Counter()
    for seed in range(60):
        job = Changed(seed, limit=UNLIMITED)
        commands = commands_of(slices(job))
        numbers = {(one.start_ns, one.end_ns, str(one.stream)): number for number, one in enumerate(job.commands)}
        graph, spans = device_graph(commands, dependencies(commands), cautious=True), job.spans()
        step, window = sorted(spans.items())[-1]
        (following,) = np.flatnonzero(commands.start_ns == window[1])[:1]
        slack = graph.latest([(int(following), int(commands.end_ns[following]))]) - graph.at_ns
        for row in random.Random(seed).sample(range(len(commands.start_ns)), 4):
            if not 30_000 < slack[row] < 10**9:
                continue
            number = numbers[int(commands.start_ns[row]), int(commands.end_ns[row]),
                             commands.streams[commands.stream[row]]]
            for longer, grows in ((int(0.8 * slack[row]), 0), (int(slack[row]) + 500_000, 500_000)):
                end = Changed(seed, ("command", number, -longer), limit=UNLIMITED).spans()[step][1]
                found[grows, abs(end - window[1] - grows) <= 30_000] += 1
    assert found[0, True] > 40 and found[0, True] >= 0.95 * (found[0, True] + found[0, False]), found
    # what a stream or a call waited for is inferred, and slack is none too large where several are possible
    assert found[500_000, True] >= 0.65 * (found[500_000, True] + found[500_000, False]), found


@pytest.mark.parametrize("seed", range(40))
def test_chains_of_timelines_that_cannot_be_end_and_add_up(seed):
    """Commands without length, before their launches, several at once in a stream, correlations of others."""
    chance, span = random.Random(seed), random.Random(seed).choice([50, 1000, 100_000])
    rows = []
    for number in range(chance.randint(2, 60)):
        call = chance.choice([None, 0, chance.randint(1, 60), number + 1])
        rows.append((chance.choice(["cudaLaunchKernel", "cudaDeviceSynchronize", "cudaStreamWaitEvent"]),
                     "cuda_runtime", chance.randint(0, span), chance.choice([0, 1, chance.randint(0, span)]), call,
                     "host", "main"))
        rows.append((chance.choice(["gemm", "Memcpy DtoH (Device -> Pageable)"]),
                     chance.choice(["kernel", "gpu_memcpy"]), chance.randint(0, span),
                     chance.choice([0, 1, chance.randint(0, span)]), call, "0", chance.choice("78")))
    events = pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(sequence_number=pl.lit(None, pl.Int64))
    windows = pl.DataFrame([(0, 0, span // 2, True), (1, span // 2, span + 1, True)], schema=WINDOWS, orient="row")
    path = device_path(0, events, windows)
    for row in [] if path is None else path.steps.to_dicts():
        links = path.links.filter(pl.col("step") == row["step"])
        assert (links["end_ns"] - links["start_ns"]).sum() == row["end_ns"] - row["start_ns"]
        assert (links["start_ns"][1:] == links["end_ns"][:-1]).all()
