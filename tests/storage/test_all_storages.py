"""What distprof does with runs elsewhere, on a real server of each kind of storage."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from distprof.storage.places import place
from distprof.storage.writing.claims import NAME, Claim
from distprof.storage.writing.uploading import put_file
from distprof.storage.writing.writable import PART_BYTES
from support.azure_server import KEY
from support.jobs import EXAMPLES, ROOT, called, distprof
from support.rank_traces import slice_of, write_run
from support.storages import KINDS, Storage, use

EVENTS = [[slice_of(f"op{rank} {number}", 10 * number, 5) for number in range(200)] for rank in range(3)]
NAMES = count()


@pytest.fixture(scope="module", params=[
    pytest.param(kind, marks=pytest.mark.stress if kind == "sftp" else ()) for kind in KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> (
        Iterator[Callable[[str], Storage]]):
    """One for all tests of a kind; sftp is another name of ssh."""
    kind = KINDS[request.param]
    if why := kind.why_not():
        pytest.skip(why)
    with kind.started(tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def storage(server: Callable[[str], Storage], monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A place with nothing in it, which this process reaches."""
    made = server(f"test{next(NAMES)}")
    use(monkeypatch, made.environ)
    yield made
    use(monkeypatch, {})


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", *EVENTS)


@pytest.fixture
def run(here: Path, storage: Storage) -> str:
    return storage.put(here, f"{storage.url}/my runs é/#1 100%/run")


@pytest.mark.long
@pytest.mark.parametrize("command", [("stats",), ("stats", "--json"), ("comms",), ("ops", "--csv"),
                                     ("report", "--json")], ids=" ".join)
def test_a_command_prints_the_same(command: tuple[str, ...], run: str, here: Path) -> None:
    local, there = called(*command, here), called(*command, run)
    assert (local.returncode, there.returncode, there.stderr) == (0, 0, ""), there.stderr
    assert len(local.stdout) > 100
    assert there.stdout.replace(run, str(here)).replace(f"'{here}'", str(here)) == local.stdout


@pytest.mark.long
@pytest.mark.parametrize("server", KINDS, indirect=True)
def test_a_merge_there_is_that_here(run: str, here: Path, storage: Storage, tmp_path: Path) -> None:
    local, there = called("merge", here), called("merge", run)
    assert (local.returncode, there.returncode, there.stderr) == (0, 0, "")
    made = {file.relative_to(here / "merged").as_posix(): file.read_bytes()
            for file in (here / "merged").rglob("*") if file.is_file()}
    found = storage.objects(f"{run}/merged")
    assert found.keys() == made.keys()
    assert gzip.decompress(found["trace.json.gz"]) == gzip.decompress(made["trace.json.gz"])
    assert called("merge", run).stderr.startswith(f"distprof: {run}/merged already holds a merge")
    assert called("merge", run, "--force", "--ranks", "1").returncode == 0
    again = storage.objects(f"{run}/merged")
    assert b"op0" not in gzip.decompress(again["trace.json.gz"])
    assert set(again) <= set(found), "nothing is left of what it wrote under other names"


def test_reports_are_written_there(run: str, storage: Storage) -> None:
    done = called("report", run, "--out", f"{storage.url}/new/folder/r.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: content[:9] for name, content in storage.objects(f"{storage.url}/new").items()} == {
        "folder/r.html": b"<!doctype"}
    assert "exists already" in called("report", run, "--out", f"{storage.url}/new/folder/r.html").stderr


def test_a_run_is_uploaded_and_what_is_there_stays(here: Path, storage: Storage) -> None:
    url = f"{storage.url}/up"
    assert called("upload", here, url).returncode == 0
    found = storage.objects(url)
    assert {name: content for name, content in found.items() if not name.endswith(".upload.json")} == {
        file.relative_to(here).as_posix(): file.read_bytes() for file in here.rglob("*") if file.is_file()}
    again = called("upload", here, url)
    assert "everything was already there" in again.stdout, again.stderr
    assert called("stats", url).stdout.replace(url, str(here)) == called("stats", here).stdout


def test_names_of_all_kinds(storage: Storage, tmp_path: Path) -> None:
    # the emulator of gs:// cannot find a name with ; in it
    names = {f"odd/{name}/f" for name in ("a b", "ü", "'\"$(x)|", "%41%2f", "&=+", "~", "*", "[a]", "-rf", "a:b", "#")}
    for name in names:
        (tmp_path / "tree" / name).parent.mkdir(parents=True)
        (tmp_path / "tree" / name).write_text(name)
    root = place(storage.put(tmp_path / "tree", f"{storage.url}/t"))
    assert {path.relative_to(root).as_posix() for path in root.glob("*/*/*")} == names
    assert all((root / name).read_text() == name for name in names)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of adlfs and gcsfs; Python shows none
@pytest.mark.parametrize("size", [0, PART_BYTES + 1])
def test_files_of_any_length_are_written_and_read(size: int, storage: Storage, tmp_path: Path) -> None:
    content = (os.urandom(1 << 20) * (size // (1 << 20) + 1))[:size]
    (tmp_path / "file").write_bytes(content)
    put_file(tmp_path / "file", f"{storage.url}/x/file")
    assert storage.objects(f"{storage.url}/x") == {"file": content}
    path = place(f"{storage.url}/x/file")
    assert path.stat().st_size == size
    with path.open("rb") as file:
        assert file.read() == content
        file.seek(size // 3)
        assert file.read(1000) == content[size // 3:size // 3 + 1000]


@pytest.mark.long
def test_a_place_is_claimed_by_one_at_a_time(storage: Storage, run: str) -> None:
    with Claim(f"{storage.url}/m", "m") as first:
        refused = called("merge", run, "--out", f"{storage.url}/m")
        assert refused.stderr.startswith("distprof: process "), refused.stderr
        assert f" is already writing {storage.url}" in refused.stderr
        first.check()
    assert called("merge", run, "--out", f"{storage.url}/m").returncode == 0
    assert NAME not in storage.objects(f"{storage.url}/m")


def test_what_is_replaced_while_it_is_read_is_noticed(storage: Storage, tmp_path: Path) -> None:
    for number, text in enumerate(("one", "three")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "f").write_text(text)
    path = place(storage.put(tmp_path / "0", f"{storage.url}/x")) / "f"
    assert path.stat().st_size == 3
    storage.put(tmp_path / "1", f"{storage.url}/x")
    with pytest.raises(OSError, match="it was replaced while being read"):
        path.read_bytes()


def test_nothing_there_is_said_in_a_line(storage: Storage) -> None:
    done = called("stats", f"{storage.url}/no run")
    assert done.returncode == 1
    line, = done.stderr.splitlines()
    assert "does not exist" in line and "  hint: " in line


@pytest.mark.job
@pytest.mark.parametrize("server", [
    "ssh", pytest.param("gs", marks=pytest.mark.stress), pytest.param("abfs", marks=pytest.mark.stress)], indirect=True)
def test_a_job_is_uploaded_while_it_runs(storage: Storage, tmp_path: Path) -> None:
    done = distprof("run", "--out", f"{storage.url}/job", "--nproc-per-node", 1, "--steps",
                    "wait=1,count=0,time=1,trace=1,arrivals=0", EXAMPLES / "train_ddp.py", "--steps", 4, cwd=tmp_path,
                    **{"PYTHONPATH": str(ROOT), **storage.environ})
    assert done.returncode == 0, done.stderr
    assert f"uploaded to {storage.url}/job; " in done.stderr
    here, = (tmp_path / "runs").iterdir()
    names = {file.relative_to(here).as_posix() for file in here.rglob("*")
             if file.is_file() and not any(part.startswith(".") for part in file.relative_to(here).parts)}
    assert names == {name for name in storage.objects(f"{storage.url}/job") if not name.endswith(".upload.json")}
    assert called("stats", f"{storage.url}/job").returncode == 0


@pytest.mark.parametrize("server", ["abfs"], indirect=True)
def test_a_wrong_key_of_azure_is_said(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {name: words.replace(KEY, "A" * 86 + "==") for name, words in storage.environ.items()})
    assert called("stats", f"{storage.url}/run").stderr == (
        f"distprof: cannot read or write {storage.url}/run: access was denied (403 AuthorizationFailure)  hint: can "
        "these credentials read and list there? see docs/object-storage.md for the permissions needed\n")
