"""Every command that stands beside one of another tool works on the trace of a GPU."""

import re
import shutil

import pytest

from support.jobs import ROOT, called

PAGE = (ROOT / "docs" / "gpu-tools.md").read_text()
COMMANDS = sorted(set(re.findall(r"`distprof ([^`]*)`", PAGE)))
TRACE = ROOT / "tests" / "support" / "data" / "h100_streams.json.gz"
REFUSED = {"critical-path": "no collectives with known times", "merge": "memory",
           "ops": "no (counters of CUPTI|capture of a graph)"}
"""What the trace of one GPU, without collectives, memory, counters and captures, has no answer to."""


@pytest.fixture
def trace(tmp_path):
    return shutil.copy(TRACE, tmp_path / "trace_rank0.json.gz")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_table_answers(tmp_path, trace, command):
    words = [trace if word in ("RUN", "A", "B", "CAPTURE") else word for word in command.split()]
    more = ["--out", tmp_path / "merged"] if words[0] == "merge" else []
    done = called(*words, *more)
    if done.returncode:
        assert words[0] in REFUSED and re.search(REFUSED[words[0]], done.stderr), done.stderr
    else:
        assert done.stdout.strip()


def test_there_are_as_many_as_the_table_has():
    assert len(COMMANDS) >= 15 and all(word in PAGE for word in ("get_temporal_breakdown", "gpu_timeline"))
