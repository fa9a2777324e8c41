"""What if of one GPU: predictions beside the same simulated job with the change."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from distprof.merge.whatif.on_device import rank_replay
from support.device_simulation import Simulation
from support.jobs import called
from support.simulator.device_job import DeviceJob, Slow

SCHEMA = {"name": pl.String, "category": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64,
          "correlation": pl.Int64, "process": pl.String, "thread": pl.String}
KERNEL_NS = 1_500_000


class Halved(Simulation):
    """Kernels of one stream take half as long."""

    halved = True

    def run(self, stream, kind, correlation, duration_ns, *, noted=True):
        return super().run(stream, kind, correlation, duration_ns // 2 if self.halved and stream == 0 else duration_ns,
                           noted=noted)


class Usual(Halved):
    halved = False


@pytest.mark.long
def test_steps_with_shorter_kernels_are_those_of_a_simulation_with_shorter_kernels():
    errors = []
    for seed in range(80):
        job, changed = Usual(seed, limit=10**9), Halved(seed, limit=10**9)
        events = pl.DataFrame(list(job.slices()), schema=SCHEMA, orient="row").with_columns(
            sequence_number=pl.lit(None, pl.Int64))
        windows = pl.DataFrame([(number, *mark) for number, mark in enumerate(job.marks)], orient="row",
                               schema=["step", "start_ns", "end_ns"])
        replay = rank_replay(0, events, windows)
        commands, took = replay.commands, replay.graph.took_ns.astype(float)
        in_stream = np.array([commands.streams[one] == "0" for one in commands.stream.tolist()])
        took[:len(in_stream)][in_stream] //= 2
        times = replay.graph.times(took, replay.graph.after_ns)[:len(in_stream)] - took[:len(in_stream)]
        spans = changed.spans()
        for (step, _, _), length in zip(replay.borders, replay.lengths(times), strict=True):
            usual, real = (end - start for start, end in (job.spans()[step], spans[step]))
            errors.append((abs(length - real), usual - real, real))
    assert sum(gained for _, gained, _ in errors) > 10_000_000
    close = [error <= 20_000 + 0.06 * abs(gained) for error, gained, _ in errors]
    # a stream may have to wait for another one only after the change, which no trace shows
    assert np.mean(close) >= 0.93, sorted(errors)[-10:]


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    return DeviceJob(num_ranks=1, noise=0).write(tmp_path_factory.mktemp("even") / "run")


@pytest.mark.long
@pytest.mark.parametrize(("scale", "slow"), [
    ("module=layers.2,phase=forward: 0.5", Slow(0, "forward", 2, -KERNEL_NS // 2)),
    ("op=gemm_grad_1: 0.5", Slow(0, "backward", 1, -KERNEL_NS)),
    ("phase=data: 0.5", Slow(0, "data", None, -100_000)),
    ("op=multi_tensor*: 3", Slow(0, "optimizer", None, 600_000))])
def test_steps_are_those_of_the_job_with_the_change(even, tmp_path, scale, slow):
    found = json.loads(called("whatif", "--json", "--scale", scale, even).stdout)
    real = json.loads(called("critical-path", "--json", DeviceJob(num_ranks=1, noise=0, slow=[slow]).write(
        tmp_path / "run")).stdout)["duration_ns"]
    assert found["job"]["predicted_ns"] == pytest.approx(real, abs=20_000)
    assert found["job"]["replayed_ns"] == pytest.approx(found["job"]["measured_ns"], abs=2)
    assert abs(found["gain_ns"]) == pytest.approx(abs(slow.ns), abs=20_000)


def test_work_of_the_host_that_is_hidden_gains_nothing(even):
    text = called("whatif", "--scale", "module=layers.2: 0.9999", even).stdout
    assert "steps are those of the device, through its launches" in text
    found = json.loads(called("whatif", "--json", "--scale", "op=aten::linear: 1", even).stdout)
    assert found["gain_ns"] == pytest.approx(0, abs=1) and found["scaled"][0]["by_rank"][0]["time_ns"] > 0


@pytest.mark.long
def test_what_is_not_there_is_refused(even):
    for scale in ("op=nix*: 0.5", "module=nix: 0.5", "phase=nix: 0.5", "rank=3: 0.5", "step=99: 0.5"):
        refused = called("whatif", "--scale", scale, even)
        assert refused.returncode == 2 and "unknown" in refused.stderr, refused.stderr
    assert called("whatif", "--scale", "op=gemm_0: 0.5", "--step", 99, even).returncode == 2
