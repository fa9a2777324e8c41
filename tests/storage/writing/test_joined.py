"""Objects of pieces that several processes put: the bytes of one file, within the limits of S3."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest

from distprof.errors import OutputError
from distprof.storage.writing import joined
from distprof.storage.writing.joined import Joined
from distprof.storage.writing.uploading import LEAST_BYTES, Upload
from distprof.storage.writing.writable import MOST_PARTS, PART_BYTES
from support.faulty_proxy import answers, faulty_proxy
from support.s3_server import S3Server, use

HEAD, BETWEEN, END = b"the head\n", b",\n", b"the end\n"


def _join(made: Joined, pieces: list[bytes], folder: Path) -> bytes:
    """Writes pieces as a merge does, those without bytes left out; what one file would hold."""
    made.begin(len(pieces), BETWEEN)
    made.write(HEAD)
    expected = HEAD
    for index, piece in enumerate(pieces):
        if not piece:
            continue
        path = folder / "piece"
        path.write_bytes(piece)
        with path.open("r+b") as file:
            parts = pickle.loads(pickle.dumps(made.share(index))).put(file)
        if parts is not None and not made.wants_begin():
            path.unlink()
        if expected != HEAD:
            made.write(BETWEEN)
            expected += BETWEEN
        made.append(index, path, parts)
        expected += piece
    made.finish([END, END])
    return expected + END + END


@pytest.mark.long
def test_the_object_is_what_one_file_would_be(server: S3Server, bucket: str, tmp_path: Path) -> None:
    sizes = [0, LEAST_BYTES, 7, LEAST_BYTES - 1, 2 * LEAST_BYTES - 1, 2 * LEAST_BYTES, 1, LEAST_BYTES - 1, 2, 0,
             LEAST_BYTES + PART_BYTES + 1, 3 * PART_BYTES]
    made = Joined(f"{bucket}/m/trace.json.gz", f"{bucket}/m")
    expected = _join(made, [os.urandom(size) for size in sizes], tmp_path)
    assert server.objects(f"{bucket}/m") == {}
    made.complete()
    made.abort()  # nothing is left to abort
    assert server.client().get_object(Bucket="jobs", Key="m/trace.json.gz")["Body"].read() == expected
    assert made.num_bytes == len(expected)


class _Storage:
    """Holds parts in memory, as S3 does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts, self.writers = dict[int, bytes](), dict[int, int]()
        monkeypatch.setattr(joined, "begin", lambda url: Upload(url=url, id="1"))
        monkeypatch.setattr(joined, "put_part", self._put)
        monkeypatch.setattr(joined, "complete", self._complete)

    def _put(self, _: Upload, number: int, content: bytes) -> str:
        assert 1 <= number <= MOST_PARTS and content
        assert number not in self.parts
        self.parts[number] = content
        return str(hash(content))

    def _complete(self, _: Upload, tags: dict[int, str]) -> None:
        self.parts = {number: content for number, content in self.parts.items() if number in tags}
        assert {number: str(hash(content)) for number, content in self.parts.items()} == tags

    def content(self) -> bytes:
        return b"".join(self.parts[number] for number in sorted(self.parts))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_pieces_of_all_lengths_become_parts_that_s3_takes(seed: int, monkeypatch: pytest.MonkeyPatch,
                                                          tmp_path: Path) -> None:
    storage, chance = _Storage(monkeypatch), random.Random(seed)
    least, usual = 50, 160
    monkeypatch.setattr(joined, "LEAST_BYTES", least)
    monkeypatch.setattr(joined, "PART_BYTES", usual)
    monkeypatch.setattr(joined, "END_PARTS", chance.choice([1, 2, 100]))
    lengths = chance.choice([(0, 49), (0, 120), (0, 1000), (45, 55), (95, 105), (0, 1, 30, 49, 50, 99, 100, 500, 5000)])
    pieces = [chance.randbytes(chance.randint(*lengths) if len(lengths) == 2 else chance.choice(lengths))
              for _ in range(chance.choice([1, 2, 7, 60]))]
    made = Joined("s3://b/x", "s3://b")
    expected = _join(made, pieces, tmp_path)
    made.complete()
    assert storage.content() == expected
    assert made.num_bytes == len(expected)
    *some, _ = sorted(storage.parts)
    assert all(len(storage.parts[number]) >= least for number in some)


@pytest.mark.long
def test_as_many_pieces_as_there_are_numbers_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    storage = _Storage(monkeypatch)
    monkeypatch.setattr(joined, "LEAST_BYTES", 50)
    monkeypatch.setattr(joined, "PART_BYTES", 160)
    made = Joined("s3://b/x", "s3://b")
    expected = _join(made, [b"x" * (400 if index % 3 else 49) for index in range(joined.MOST_PIECES)], tmp_path)
    made.complete()
    assert storage.content() == expected


@pytest.mark.long
def test_storages_that_join_no_parts_and_too_many_pieces_are_not_taken(bucket: str) -> None:
    assert Joined.takes(f"{bucket}/x", joined.MOST_PIECES)
    assert not Joined.takes(f"{bucket}/x", joined.MOST_PIECES + 1)
    assert not Joined.takes("memory://x", 1)


@pytest.mark.long
def test_a_part_that_another_attempt_changed_never_gets_into_the_object(bucket: str, tmp_path: Path) -> None:
    """Equal bytes do no harm; others, which a worker with another library might write, end it."""
    (tmp_path / "piece").write_bytes(content := os.urandom(LEAST_BYTES))
    for again, fits in ((content, True), (content[::-1], False)):
        made = Joined(f"{bucket}/m/x", f"{bucket}/m")
        made.begin(2, BETWEEN)
        share = made.share(1)
        made.write(os.urandom(LEAST_BYTES) + BETWEEN)
        with (tmp_path / "piece").open("r+b") as file:
            made.append(1, tmp_path / "piece", share.put(file))
        with (tmp_path / "again").open("w+b") as file:
            file.write(again)
            share.put(file)
        made.finish([END])
        if fits:
            made.complete()
        else:
            with pytest.raises(OutputError, match="cannot write s3://jobs/m: "):
                made.complete()
            made.abort()


@pytest.mark.long
def test_a_worker_without_the_right_to_write_says_where(server: S3Server, bucket: str, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    made = Joined(f"{bucket}/m/x", f"{bucket}/m")
    made.begin(1, BETWEEN)
    with faulty_proxy(server.address) as proxy, (tmp_path / "piece").open("w+b") as file:
        proxy.add(answers(503, "SlowDown"), method="PUT", times=3)
        proxy.add(answers(403, "AccessDenied"), method="PUT")
        use(monkeypatch, server, proxy.address)
        file.write(os.urandom(LEAST_BYTES))
        with pytest.raises(OutputError, match=r"cannot write s3://jobs/m from a worker on \S+: access was denied"):
            made.share(0).put(file)
        assert proxy.num_seen("PUT", ".*") == 4
    use(monkeypatch, server)
    made.abort()
    assert "Uploads" not in server.client().list_multipart_uploads(Bucket="jobs")
