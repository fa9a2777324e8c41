"""Objects that are put by others are there when their owner says so, all of them or none."""

from __future__ import annotations

import io
import pickle

import pytest

from distprof.errors import OutputError
from distprof.storage.writing import writable
from distprof.storage.writing.by_workers import WholeObjects
from support.faulty_proxy import answers, faulty_proxy
from support.s3_server import use

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
