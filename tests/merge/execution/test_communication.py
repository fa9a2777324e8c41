"""Which operator issued a call of communication."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distprof.merge.execution.communication import _issuer

NAMES = ["c10d::broadcast_", "c10d::allreduce_", "c10d::reduce_scatter_tensor_coalesced_",
         "_c10d_functional::all_reduce"]


@pytest.mark.parametrize(("op", "around", "found"), [
    ("broadcast", [0], 0), ("all_reduce", [1], 0), ("all_reduce", [3], 0), ("all_reduce", [3, 1], 1),
    ("all_reduce", [0], -1),  # another thread is in there
    ("all_reduce", [1, 0], 0), ("all_reduce", [2], 0),  # gloo reduces all where it has to reduce and scatter
])
def test_an_operator_of_another_thread_did_not_issue_what_is_called_meanwhile(op, around, found):
    number = len(around)
    graph = SimpleNamespace(names=NAMES, name=np.array(around), start_ns=np.arange(number) + 10,
                            duration_ns=np.full(number, 1000))
    assert _issuer(graph, np.arange(number), {}, -1, 500, op) == found
