"""Execution traces and timelines with random damage: what can be read is exported, or one line says why not."""

from __future__ import annotations

import copy
import json
import os
import random

import pytest

from support.execution_traces import gloo_job, read_et
from support.jobs import called

pytestmark = pytest.mark.stress
CASES = int(os.environ.get("DISTPROF_MUTATED", "1000"))
VALUES = (None, -1, 0, 2**63, 2**64, 1e308, float("nan"), "", "x", [], {}, [[]], True, "\ud800", [1, 2, 3, 4, 5, "cpu"])


def damaged(text: bytes, chance: random.Random) -> bytes:
    """Bytes lost, doubled or changed."""
    found = bytearray(text)
    for _ in range(chance.randrange(1, 6)):
        place, length = chance.randrange(len(found) or 1), chance.choice((1, 1, 3, 50, 400))
        how = chance.randrange(4)
        if how == 0:
            del found[place:place + length]
        elif how == 1:
            found[place:place] = found[place:place + length]
        elif how == 2:
            found[place:place + 1] = bytes([chance.randrange(256)])
        else:
            del found[place:place + (len(found) if chance.random() < 0.1 else 1)]
    return bytes(found)


def changed(text: bytes, chance: random.Random) -> bytes:
    """Values replaced by others, at any depth."""
    tree = json.loads(text)
    for _ in range(chance.randrange(1, 8)):
        at = tree
        while isinstance(at, (dict, list)) and at:
            key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if chance.random() < 0.2 or not isinstance(at[key], (dict, list)) or not at[key]:
                at[key] = copy.deepcopy(chance.choice(VALUES))
                break
            at = at[key]
    return json.dumps(tree).encode()


@pytest.mark.parametrize("seed", range(20))
def test_no_damage_ends_in_an_unexpected_error(tmp_path, seed):
    chance = random.Random(seed)
    folder = gloo_job(tmp_path / "run")
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for number in range(CASES // 20):
        for path, text in whole.items():
            path.write_bytes(text)
        for path in chance.sample(sorted(whole), chance.randrange(1, 3)):
            path.write_bytes(chance.choice((damaged, changed))(whole[path], chance))
        form = chance.choice(("chakra", "chakra", "linked", "replay", "graphml", "dot"))
        done = called("export", folder, "--out", tmp_path / "out", "--prefix", str(number), "--format", form)
        assert "unexpected" not in done.stderr and "Traceback" not in done.stderr, done.stderr
        for path in (tmp_path / "out").glob(f"{number}.*.et"):
            nodes = read_et(path)[1]
            order = {node["id"]: place for place, node in enumerate(nodes)}
            assert all(order[one] < order[node["id"]] for node in nodes for one in (*node["data"], *node["control"]))
            path.unlink()
