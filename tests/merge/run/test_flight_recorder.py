"""Dumps of torch's flight recorder: what a job hangs in, by files of torch itself; files that are none, or hostile."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.run.flight_recorder import dump_files, read_dumps
from support.jobs import SCRIPTS, distprof, torchrun


@pytest.fixture(scope="module")
def dumps(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    torchrun(3, SCRIPTS / "flight_recorder.py", folder)
    return folder


def listing_groups(dumps: Path, folder: Path) -> Path:
    """The same files with the ranks of groups, which torch writes for NCCL and not for gloo."""
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"},
              "1": {"name": "1", "desc": "pair", "ranks": "[0, 1]"}}
    folder.mkdir()
    for file in dumps.iterdir():
        content = file.read_bytes()
        dump = json.loads(content) if content[:1] == b"{" else pickle.loads(content)
        (folder / file.name).write_bytes(pickle.dumps({**dump, "pg_config": groups}, protocol=2))
    return folder


@pytest.mark.job
def test_comms_says_who_never_entered(dumps, tmp_path):
    done = distprof("comms", listing_groups(dumps, tmp_path / "listed"))
    first, stuck, *rest = done.stdout.splitlines()
    assert first == "dumps of torch's flight recorder: ranks 0, 1 and 2"
    # the first of both groups counts from 1; broadcast is over on both ranks of the pair
    assert "ranks 0 and 2 wait in all_reduce #2 of default_pg (0-2) for" in stuck
    assert stuck.endswith("rank 1 never entered: it was last seen at flight_recorder.py:28 in <module>")
    assert not any("pair" in line for line in rest)
    data = json.loads(distprof("comms", "--json", tmp_path / "listed").stdout)
    hang, = data["stuck"]["hangs"]
    assert (data["kind"], data["world_size"], data["ranks"]) == ("flight_recorder", 3, [0, 1, 2])
    assert (hang["waiting"], hang["absent"], hang["number"], hang["ops"]) == ([0, 2], [1], 2, {"all_reduce": [0, 2]})


@pytest.mark.job
def test_what_gloo_s_dumps_leave_open_is_said(dumps, tmp_path):
    """They do not list the ranks of groups: that rank 1 is in the group of all ranks is certain all the same."""
    folder = Path(shutil.copytree(dumps, tmp_path / "dumps"))
    assert "ranks 0 and 2 wait in all_reduce #2 of default_pg for" in distprof("comms", folder).stdout
    (folder / "nccl_trace_rank_1").unlink()
    said = distprof("comms", folder).stdout
    assert "the dumps do not say which other ranks are in the group" in said and "never entered" not in said
    assert distprof("comms", "--strict", folder).returncode == 3, "rank 1 is missing"
    (folder / "nccl_trace_rank_0").write_bytes((folder / "nccl_trace_rank_0").read_bytes()[:500])
    said = distprof("comms", folder)
    assert said.returncode == 0 and "rank 0: nccl_trace_rank_0 cannot be read" in said.stdout


class _Hostile:
    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    hostile = _Hostile()
    hostile.place = str(tmp_path / "ran")
    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps({"version": "2.10", "pg_status": {}, "entries": hostile}))
    found, problems = read_dumps(tmp_path)
    assert not found and "plain containers" in problems[0].detail and not (tmp_path / "ran").exists()
    done = distprof("comms", tmp_path)
    assert done.returncode == 1 and "plain containers" in done.stderr


def test_files_of_other_kinds_are_no_dumps(tmp_path):
    for name, content in (("rank0_trace.json", b'{"traceEvents": []}'), ("model_rank_0", b"\x80\x02}q\x00."),
                          ("trace_rank_1.json", b'{"schemaVersion": 1, "distributedInfo": {"pg_config": []}}'),
                          ("notes_rank_1", b"pg_status"), ("trace_rank_x", pickle.dumps({"pg_status": {}}))):
        (tmp_path / name).write_bytes(content)
    assert not list(dump_files(tmp_path))
    for name in ("nccl_trace_rank_3", "comm_lib_trace_rank_12", "fr_7", "flight-recorder.5.json", "dump_0.pickle"):
        (tmp_path / name).write_bytes(pickle.dumps({"pg_status": {}}, protocol=2))
    assert sorted(rank for _, rank in dump_files(tmp_path)) == [0, 3, 5, 7, 12]


PLAIN = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.binary(max_size=3),
                     lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                         st.text(max_size=3), inner, max_size=3), max_leaves=6)
ENTRY = st.fixed_dictionaries({}, optional={
    "process_group": PLAIN, "profiling_name": PLAIN, "collective_seq_id": PLAIN, "retired": PLAIN, "state": PLAIN,
    "frames": PLAIN, "time_created_ns": PLAIN, "input_sizes": PLAIN})


@given(st.fixed_dictionaries({"pg_status": PLAIN, "pg_config": PLAIN, "entries": PLAIN | st.lists(ENTRY, max_size=3)}))
def test_dumps_may_hold_anything(dump):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
        found, problems = read_dumps(Path(folder))
    assert len(found) + len(problems) == 1
