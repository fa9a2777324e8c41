"""Objects that are put by others are there when their owner says so, all of them or none.

Objects that several processes write in parts, and files and folders, are written whole or not at all.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import pytest

from distprof.errors import OutputError
from distprof.storage.faults import RemoteError
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.places import place
from distprof.storage.writing import writable
from distprof.storage.writing.by_workers import WholeObjects
from distprof.storage.writing.uploading import LEAST_BYTES, abort, begin, complete, put_file, put_folder, put_part
from distprof.storage.writing.writable import PART_BYTES
from support.faulty_proxy import answers, faulty_proxy
from support.s3_server import S3Server, use

MIB = 1 << 20


@pytest.mark.long
def test_they_are_there_when_their_owner_says_so(bucket, server, monkeypatch):
    monkeypatch.setattr(writable, "PART_BYTES", 5 * MIB)
    contents = {"a/one": b"x" * (12 * MIB), "a/two": b"", "three": b"abc"}
    objects = WholeObjects(f"{bucket}/m", "there")
    for name, content in contents.items():
        place = pickle.loads(pickle.dumps(objects.place(name)))
        place.put(io.BytesIO(b"z" * (17 * MIB)))  # by a worker that was taken for dead
        objects.add(name, place.put(io.BytesIO(content)))
    assert objects.names == set(contents) and not server.objects(f"{bucket}/m")
    objects.place("never put")
    objects.complete()
    found = {name: server.client().get_object(Bucket="jobs", Key=f"m/{name}")["Body"].read() for name in contents}
    assert found == contents
    assert not server.client().list_multipart_uploads(Bucket="jobs").get("Uploads")


@pytest.mark.long
def test_nothing_is_left_of_those_that_are_given_up(bucket, server):
    objects = WholeObjects(f"{bucket}/m", "there")
    for name in ("one", "two"):
        objects.add(name, objects.place(name).put(io.BytesIO(b"abc")))
    objects.place("three")
    objects.abort()
    assert not server.client().list_multipart_uploads(Bucket="jobs").get("Uploads")
    assert not server.objects(f"{bucket}/m")


def test_an_owner_that_may_not_write_is_told(bucket, server, monkeypatch):
    with faulty_proxy(server.address) as proxy:
        use(monkeypatch, server, proxy.address)
        proxy.add(answers(403, "AccessDenied"), method="POST", path=r".*uploads.*")
        with pytest.raises(OutputError, match="cannot write there: access was denied"):
            WholeObjects(f"{bucket}/m", "there").place("one")


SCHEMES = ("s3", "memory")


@pytest.fixture
def folder(request: pytest.FixtureRequest, bucket: str) -> str:
    """A URL of each kind: S3 has uploads of parts, others do without."""
    return f"{bucket}/made" if request.param == "s3" else f"memory://{os.urandom(4).hex()}/made"


@pytest.mark.long
@pytest.mark.parametrize("folder", SCHEMES, indirect=True)
def test_parts_are_put_together_in_the_order_of_their_numbers(folder: str, tmp_path: Path) -> None:
    first, second, last = os.urandom(LEAST_BYTES), os.urandom(LEAST_BYTES + 1), b"end"
    (tmp_path / "second").write_bytes(second)
    upload = pickle.loads(pickle.dumps(begin(f"{folder}/a b/trace.json.gz")))  # as it comes to another process
    tags = {7: put_part(upload, 7, last), 2: put_part(upload, 2, tmp_path / "second")}
    assert not place(f"{folder}/a b/trace.json.gz").exists()
    tags[1] = put_part(upload, 1, b"what is written anew")
    tags[1] = put_part(upload, 1, first)
    complete(upload, tags)
    assert place(f"{folder}/a b/trace.json.gz").read_bytes() == first + second + last
    assert [path.name for path in place(f"{folder}/a b").iterdir()] == ["trace.json.gz"]


@pytest.mark.parametrize("folder", SCHEMES, indirect=True)
def test_an_aborted_upload_leaves_nothing(folder: str) -> None:
    upload = begin(f"{folder}/trace.json.gz")
    put_part(upload, 1, b"x")
    abort(upload)
    assert not place(folder).exists()


def test_what_was_left_of_an_upload_is_removed(server: S3Server, bucket: str) -> None:
    for name in ("merged/trace.json.gz", "merged", "merged-too"):
        put_part(begin(f"{bucket}/run/{name}"), 1, b"half")
    assert backend_of(bucket).abort_left(f"{bucket}/run/merged") == 2
    left = server.client().list_multipart_uploads(Bucket="jobs")["Uploads"]
    assert [one["Key"] for one in left] == ["run/merged-too"]


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 3])
def test_a_file_of_any_size_arrives_as_it_is(size: int, tmp_path: Path, server: S3Server, bucket: str) -> None:
    content = os.urandom(1 << 20) * (size // (1 << 20) + 1)
    (tmp_path / "file").write_bytes(content[:size])
    moved: list[int] = []
    put_file(tmp_path / "file", f"{bucket}/x/file", moved.append)
    assert server.client().get_object(Bucket="jobs", Key="x/file")["Body"].read() == content[:size]
    assert sum(moved) == size


def test_only_parts_that_are_stored_count_as_moved(
        tmp_path: Path, server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writable, "PART_BYTES", LEAST_BYTES)
    (tmp_path / "file").write_bytes(os.urandom(3 * LEAST_BYTES + 7))
    moved: list[int] = []
    with faulty_proxy(server.address) as proxy:
        use(monkeypatch, server, proxy.address)
        proxy.add(answers(403, "AccessDenied"), method="PUT", path=r".*partNumber=3.*")
        with pytest.raises(RemoteError):
            put_file(tmp_path / "file", f"{bucket}/x/file", moved.append)
    assert moved == [LEAST_BYTES] * 2


def test_what_makes_a_folder_complete_is_written_last(tmp_path: Path, server: S3Server, bucket: str) -> None:
    for name in ("a/b.parquet", "summary.json", "trace.json.gz", ".hidden", "z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    seen: list[set[str]] = []
    put_folder(tmp_path, f"{bucket}/m", last=("summary.json",), moved=lambda _: seen.append(set(server.objects(
        f"{bucket}/m"))))
    assert [("summary.json" in names) for names in seen] == [False, False, False, True]
    assert seen[-1] == {"a/b.parquet", "trace.json.gz", "z", "summary.json"}
