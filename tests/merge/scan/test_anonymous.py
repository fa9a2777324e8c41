"""Traces that can be shared: no folder and no host is left in them, and all else is."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan import anonymous
from distprof.merge.scan.anonymous import Anonymiser
from support.jobs import distprof
from support.kineto_files import write
from support.rank_traces import slice_of

PLAIN = Anonymiser()


@pytest.mark.parametrize(("text", "shown"), [
    ("/home/alice/job/train.py(12): step", "train.py(12): step"),
    ("/work7/secret-project/layers.py", "layers.py"),
    ("/opt/venv/lib/python3.11/site-packages/torch/nn/module.py(1): f", "site-packages/torch/nn/module.py(1): f"),
    ("/usr/lib/python3.11/threading.py(300): wait", "lib/python3.11/threading.py(300): wait"),
    ("/home/alice/checkpoints", "checkpoints"), ("/tmp/a b.json", "a b.json"),
    (r"C:\\Users\\alice\\job\\train.py(1): f", "train.py(1): f"),
    ("/home/alice", "user"), ("cd /home/alice && ls", "cd user && ls"),
    ("-I/home/alice/include", "-I/home/user/include"),
    ("/home/alice smith/job/train.py(12)", "train.py(12)"), (r"/home/ali\u00e7e/x.py", "x.py"),
    (r"C:\\Users\\alice", "user"), ("/fs01/alice/run", "run"), ("/export/home/alice/x", "x"),
    ("/layer1/conv.weight", "/layer1/conv.weight"), ("f(int)/2/3.f", "f(int)/2/3.f"),
    ("model/layers.py(3): forward", "model/layers.py(3): forward"), ("nn.Module: Linear_0", "nn.Module: Linear_0"),
    ("/device:CPU:0", "/device:CPU:0"), ("s3://bucket/a/b.json", "s3://bucket/a/b.json"), ("a / b", "a / b"),
    ("aten::add", "aten::add"), ("void f<float>(int*, int)/2", "void f<float>(int*, int)/2")])
def test_folders_go_and_names_of_files_stay(text, shown):
    assert PLAIN.text(b'"%s"' % text.encode()).decode() == f'"{shown}"'


def test_hosts_have_other_names_everywhere_and_words_stay_words():
    anonymiser = Anonymiser.of({"gpu-7.example.org": "host0", "gpu": "host1", "gpu-7": "host2"})
    text = b'"host_name": "gpu", "name": "gpu-7.example.org: gpu on gpu-7, gpu-78"'
    assert anonymiser.text(text) == b'"host_name": "host1", "name": "host0: gpu on host2, gpu-78"'
    assert PLAIN.text(b'{"hostname":"a-7"}') == b'{"hostname":"host"}'


def test_hosts_that_are_words_or_numbers_take_nothing_else_along():
    anonymiser = Anonymiser.of({"1000": "host0", "training": "host1", "Node-7.corp.io": "host2", "e5": "host3"})
    text = b'{"ts": 1000, "args": {"training": true, "Node-7.corp.io": 1, "v": 1e5}, "name": "Model: training 1000"}'
    assert anonymiser.text(text) == text
    assert anonymiser.text(b'{"name": "on node-7.corp.io"}') == b'{"name": "on host2"}'
    assert anonymiser.text(b'{"host": "training", "node_name": "x"}') == b'{"host": "host1", "node_name": "host"}'


@given(st.lists(st.sampled_from([
    '"name": "/home/alice/job/train.py(1): f"', '"ts": 5', '"host_name": "gpu-7"', "{", "}", ", ", '"a": "x/y"']),
    max_size=30), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_pieces_of_any_length_are_read_as_the_whole(parts, sizes):
    text, pieces, at = "".join(parts).encode(), [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at:at + size])
        at += size
    anonymiser = Anonymiser.of({"gpu-7": "host0"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anonymous, "HELD_BYTES", 64)
        found = b"".join(anonymiser.pieces(iter(pieces)))
    assert found == anonymiser.text(text)


def test_a_merged_trace_tells_nobody_where_it_is_from(tmp_path):
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", json.dumps({
            "distributedInfo": {"rank": rank, "world_size": 2}, "host_name": f"gpu-{rank}",
            "traceEvents": [slice_of("/home/alice/job/train.py(3): f", 1, 2, cat="python_function"),
                            slice_of("aten::mm", 1, 1, args={"file": "/home/alice/job/data.bin", "on": f"gpu-{rank}"})],
            "traceName": f"/home/alice/job/rank{rank}.json"}))
    done = distprof("merge", "--anonymise", tmp_path)
    assert done.returncode == 0, done.stderr
    text = gzip.decompress((tmp_path / "merged" / "trace.json.gz").read_bytes()).decode()
    assert "alice" not in text and "gpu-" not in text
    found = json.loads(text)["traceEvents"]
    assert {event["name"] for event in found if event["ph"] == "X"} >= {"train.py(3): f", "aten::mm"}
    assert any("host1" in str(event["args"]) for event in found if event["name"] == "process_name")
    done = distprof("merge", "--anonymise", "--format", "perfetto-tar", "--force", tmp_path)
    assert done.returncode == 2 and "--anonymise needs --format chrome" in done.stderr
