"""The compiled engine touches no memory but its own: AddressSanitizer and UBSan on damaged traces. `make stress`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from support.rank_traces import slice_of

SOURCE = Path(__file__).with_name("fuzz_scan.c")
FLAGS = ("-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

pytestmark = [pytest.mark.stress, pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")]


WIDE, NARROW = (), ("-U__SSE2__",)
"""What other processors take, eight bytes at a time, is compiled on every one."""


@pytest.fixture(scope="module", params=[WIDE, NARROW], ids=["wide", "narrow"])
def program(request, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("fuzz") / "fuzz_scan"
    subprocess.run(["cc", *FLAGS, *request.param, "-o", out, SOURCE], check=True)
    return out


def traces(folder: Path) -> list[Path]:
    """Events of every kind, in three layouts."""
    events = [
        slice_of("a \u00e9 \"quoted\"", 4416093774864.094, 12.5, cat="kernel",
                 args={"External id": 7, "Comms Id": 18446744073709551557, "Input Dims": [[2, 3], []]}),
        *({"ph": phase, "pid": -1, "tid": "x", "ts": 3, "id": "0x1f", "bp": "e", "cat": "ac2g"} for phase in "sfbe"),
        {"ph": "i", "s": "g", "ts": 1e3, "pid": "Spans", "id2": {"local": 1, "global": "g"}},
        {"ph": "X", "bind_id": "0x5", "flow_in": True, "flow_out": True}, {"ph": "M", "name": "process_name"}, {}]
    events += [slice_of(f"s{number}", number, 1) for number in range(30)]
    events += [  # operators alike, whose gaps and arguments are compared with those before
        slice_of(f"aten::operator{number % 3}", number * 1e3, 0.5, cat=("cpu_op", "python_function")[number % 2],
                 tid=7 + number // 8, args={"External id": number, "Input type": ["float", "Scalar"],
                                            "Input Dims": [[number % 5, 3], []], "Ev Idx": number * number})
        for number in range(40)]
    texts = (json.dumps(events, separators=(",", ":")), json.dumps(events, indent=2),
             json.dumps(events, ensure_ascii=False).replace("}, {", "},\n  {"))
    paths = [folder / f"{number}.json" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text[1:])
    return paths


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_outside_is_touched(program, tmp_path, seed):
    done = subprocess.run([program, str(seed), "20000", *traces(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 100_000


def test_what_is_very_long_or_very_deep(program):
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
