"""How long is waited, for how many, and that it is said."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from distprof.errors import StorageError
from distprof.storage import fetching, retrying
from distprof.storage.backend import MOST_BYTES, entry_of
from distprof.storage.faults import RemoteError
from distprof.storage.kinds.s3 import listed as s3_listed
from distprof.storage.kinds.web import listed as web_listed
from distprof.storage.retrying import VARIABLE, Tally, allowed_s, persistently

URL = "s3://bucket/run"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.2")
    monkeypatch.setattr(retrying, "LEAST_S", 0.3)
    monkeypatch.setattr(retrying, "WAITED_S", 0.1)
    monkeypatch.setattr(retrying, "_TOLD", retrying._Told())


def test_an_answer_that_does_not_come_is_said_and_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot reach s3://bucket/run: .*no complete answer within 0\.3 s"):
        persistently(URL, lambda: time.sleep(60))
    assert time.monotonic() - began < 30
    assert capsys.readouterr().err == f"distprof: {URL}: waiting for an answer, up to 0.3 s\n"
    with pytest.raises(StorageError):
        persistently(URL, lambda: time.sleep(60))
    assert capsys.readouterr().err == "", "one line for many requests"


def test_more_bytes_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert persistently(URL, lambda: time.sleep(0.6) or 7, num_bytes=100 << 20) == 7
    monkeypatch.setenv(VARIABLE, "8")
    assert (allowed_s(0), allowed_s(4 << 20)) == (8, 40)


def test_what_the_work_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        raise TimeoutError("of the library itself")

    with pytest.raises(StorageError, match="of the library itself"):
        persistently(URL, work)


def _pages(**changed: Any) -> Any:
    """A bucket whose listing always goes on."""
    numbers = iter(range(10 ** 9))

    def ask(**_: str) -> dict[str, Any]:
        number = next(numbers)
        return {"IsTruncated": True, "NextContinuationToken": f"t{number}",
                "Contents": [{"Key": f"run/{number}", "Size": 1}], "CommonPrefixes": [{"Prefix": f"run/{number}/"}],
                **changed}

    return ask


@pytest.mark.parametrize("changed", [{}, {"NextContinuationToken": "same"}, {"NextContinuationToken": ""},
                                     {"Contents": []}])
def test_a_bucket_without_end_is_not_listed_to_it(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "60")
    monkeypatch.setattr(retrying, "MOST_OBJECTS", 5000)
    monkeypatch.setattr(retrying, "MOST_FOLDERS", 10_000)
    with pytest.raises(RemoteError, match="its listing does not end"):
        list(s3_listed(_pages(**changed), "run/", Tally(URL)))


@pytest.mark.parametrize("page", ['<a href="a/">x</a>', "".join(f'<a href="a{number}/">x</a>' for number in range(50)),
                                  "".join(f'<a href="f{number}">x</a>' for number in range(9000))])
def test_nor_are_pages_whose_links_go_on(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "MOST_OBJECTS", 5000)
    monkeypatch.setattr(retrying, "MOST_FOLDERS", 5000)
    monkeypatch.setenv(VARIABLE, "60")
    with pytest.raises(RemoteError, match="its listing does not end"):
        web_listed(lambda _: page, "http://host/run")


def test_links_of_a_page_are_files_and_folders_below_it() -> None:
    pages = {"": '<a href="../">up</a><a href="?C=N;O=D">sort</a> <A class="x" HREF=\'rank00000/\'>rank</A>'
                 '<a href="/run/b"></a><a href="/other/c"></a><a href="http://host/run/d">x</a><a href="https://else/run/e">x</a>'
                 '<a href="#top">x</a><a href="rank00000/">again</a> http://host/run/plain <a href="./f">x</a>',
             "rank00000": '<a href="rank.json">x</a><a href="/run/">up</a>'}
    assert set(web_listed(pages.__getitem__, "http://host/run")) == {"b", "d", "f", "plain", "rank00000/rank.json"}


def test_a_listing_that_trickles_is_given_up_and_one_that_takes_its_time_is_said(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 5.0, 7.0, 11.0, 13.0, 1000.0])
    monkeypatch.setattr(retrying, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setenv(VARIABLE, "8")
    one = Tally(URL)
    for objects in (100, 0, 900, 0):
        one.took(objects=objects)
    assert capsys.readouterr().err == (f"distprof: {URL}: 100 objects listed so far\n"
                                       f"distprof: {URL}: 1,000 objects listed so far\n")
    with pytest.raises(StorageError, match=r"cannot list s3://bucket/run: 1,001 objects in 1e\+03 s"):
        one.took(objects=1)


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1, 10 ** 30, "123456789012345678901234567890"])
def test_a_length_that_nothing_can_have_is_none(size: object) -> None:
    assert entry_of({"size": size}).size is None
    assert entry_of({"size": "17", "mtime": 1e300}) == entry_of({"size": 17})


def test_what_has_no_room_on_disk_is_not_copied() -> None:
    huge: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_size=MOST_BYTES), __str__=lambda: URL)
    with pytest.raises(RemoteError, match="too many for a copy in"):
        fetching.copied(huge)
