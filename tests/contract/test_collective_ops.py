"""A communication op is one row: nothing else has to be touched to add one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distprof.contract import collective_ops
from distprof.contract.collective_ops import ROWS
from distprof.merge.cost.matrix import _RULES
from distprof.merge.match.backend_names import op_of

NEW_ROW = """
    CollectiveOp(
        name="mix", letter="M", c10d=("mix_",), keyword="mix", gloo=("mixing",), leaves="after all", equal_inputs=True,
        rooted=True, bus_factor="ring", traffic="ring"),
"""
PROGRAM = """
import sys, types
from pathlib import Path

path, row = Path(sys.argv[1]), sys.argv[2]
text = path.read_text()
module = types.ModuleType("distprof.contract.collective_ops")
sys.modules["distprof.contract.collective_ops"] = module
exec(compile(text.replace("ROWS = (", "ROWS = (" + row, 1), str(path), "exec"), module.__dict__)

from support.comm_rows import call, matched
from distprof.merge.clock.model import Alignment, Clock
from distprof.merge.clock.by_collectives import synchronising
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.cost.matrix import bytes_between
from distprof.merge.match.backend_names import op_of
from distprof.merge.text.communication.timeline import time_axis, bars
from distprof.recording.communication.gloo_times import gloo_names
from distprof.recording.communication.labels import OP_OF_C10D

rows = matched(*(call(rank, "mix", of=(0, 1), sequence=0, group_sequence=0, size_bytes=size, peer=0, dtype="float32",
                      start_ns=start, end_ns=1100) for rank, start, size in ((0, 100, 800), (1, 600, 800))))
bad = matched(*(call(rank, "mix", of=(0, 1), sequence=0, group_sequence=0, size_bytes=800 + rank, peer=rank,
                     dtype="float32") for rank in (0, 1)))
clock = Clock(method="shared", num_hosts=1, ranks={rank: Alignment(uncertainty_ns=0) for rank in (0, 1)})
costs = measured_collectives(rows, clock, {0: "a", 1: "a"})
print(op_of("c10d::mix_"), op_of("ncclDevKernel_Mix_Sum_f32"), OP_OF_C10D["mix_"], *gloo_names("mix"))
print(*rows["complete"], *costs["wait_ns"], *(round(one * 1e-9, 3) for one in costs["busbw"]), len(synchronising(rows)))
print(bad["mismatch"][0])
print(*bytes_between(costs).select("source", "target", "num_bytes").rows())
print(*bars(costs, [0, 1], time_axis(costs, 10), arrivals=False).values())
"""


def test_every_row_has_everything():
    for row in ROWS:
        assert row.name and row.c10d and row.keyword and len(row.letter) == 1
        assert row.traffic in _RULES or row.traffic == ("pair" if row.point_to_point else None)
        assert (row.traffic is None) == (not row.has_data) == (row.bus_factor is None)
    for field in ("name", "letter", "keyword"):
        assert len({getattr(row, field) for row in ROWS}) == len(ROWS)
    assert len(collective_ops.OP_OF_C10D) == sum(len(row.c10d) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_names_of_a_row_lead_to_it(row):
    assert op_of(row.name) == op_of(row.keyword) == row.name
    assert all(op_of(name) == row.name for name in row.c10d)


@pytest.mark.long
def test_a_new_row_is_all_that_a_new_op_takes():
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(Path(collective_ops.__file__)), NEW_ROW],
                          capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    names, costs, mismatch, matrix, drawn = done.stdout.splitlines()
    assert names == "mix mix mix mixing"
    assert costs == "True True 500 0 0.8 0.8 2", "waits, busbw in GB/s, rows that bound clocks"
    assert "sizes differ" in mismatch and "roots differ" in mismatch
    assert matrix == "(0, 1, 400.0) (1, 0, 400.0)"
    assert set(drawn) == {"~", "M", ".", " "}, drawn
