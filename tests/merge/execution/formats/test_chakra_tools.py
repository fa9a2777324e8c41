"""The tools of Chakra read what `distprof export` writes."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from support import forked
from support.chakra_tools import chakra, converted, jsonized, needs_chakra
from support.execution_traces import gloo_job, pair
from support.jobs import PATIENCE_S, SCRIPTS, called, clean_environ
from support.kineto_files import DLRM, needs_shared
from support.ports import free_port

pytestmark = [needs_chakra, pytest.mark.job]


def exported(source, folder, form="chakra", *options):
    done = called("export", source, "--out", folder, "--prefix", "job", "--format", form, *options)
    assert done.returncode == 0, done.stderr
    return folder


def test_they_read_a_job_of_gloo(tmp_path):
    source = gloo_job(tmp_path / "run")
    nodes = jsonized(exported(source, tmp_path / "et") / "job.0.et")
    assert Counter(node["type"] for node in nodes
                   if node["name"] != "outside of calls" and not node["name"].endswith("(continued)")) == {
        "METADATA_NODE": 1, "COMP_NODE": 4, "COMM_COLL_NODE": 1, "COMM_SEND_NODE": 1}
    graph = tmp_path / "et" / "job.0.graphml"
    chakra("visualizer", "--input_filename", tmp_path / "et" / "job.0.et", "--output_filename", graph, cwd=tmp_path)
    assert len([one for one in ElementTree.parse(graph).iter() if one.tag.endswith("node")]) == len(nodes)
    assert converted(exported(source, tmp_path / "linked", "linked") / "job.0.json")["COMM_COLL_NODE"] == 1


@needs_shared
def test_they_read_ranks_of_a_job_of_nccl(tmp_path):
    exported(DLRM, tmp_path / "linked", "linked", "--rank", 0)
    for rank in (0, 7):
        exported(DLRM, tmp_path / "et", "chakra", "--rank", rank)
        kinds = Counter(node["type"] for node in jsonized(tmp_path / "et" / f"job.{rank}.et"))
        assert kinds["COMM_COLL_NODE"] == 8 and kinds["COMP_NODE"] > 1800
    kinds = converted(tmp_path / "linked" / "job.0.json")
    assert kinds["COMM_COLL_NODE"] == 8


def test_the_file_of_a_single_call_is_read(tmp_path):
    source = pair(tmp_path / "run", [], [{"ph": "X", "cat": "cpu_op", "name": "alone", "pid": 1, "tid": 1, "ts": 1,
                                          "dur": 1, "args": {}}])
    (source / "et_rank0.json").unlink()
    assert [node["name"] for node in jsonized(exported(source, tmp_path / "et") / "job.0.et")][1:] == ["alone"]


def test_a_script_with_two_observers_of_its_own_is_exported(tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    done = forked.run([sys.executable, SCRIPTS / "two_observers.py", folder, str(free_port())], timeout=PATIENCE_S,
                      capture_output=True, text=True, env=clean_environ(), check=False)
    assert done.returncode == 0, done.stderr
    said = called("export", folder, "--out", tmp_path / "et", "--prefix", "job").stdout
    assert said.count("100.0 %") == 2
    for rank in (0, 1):
        kinds = Counter(node["type"] for node in jsonized(tmp_path / "et" / f"job.{rank}.et"))
        recorded = json.loads((folder / f"demo_et_r{rank}.json").read_text())["nodes"]
        issued = [node for node in recorded if node["name"].startswith("c10d::")]
        assert kinds["COMM_COLL_NODE"] == len(issued) >= 3
