"""Run directories with something wrong: one line, the right exit code, nothing lost."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.parquet_footer import MARK, MARK_BYTES
from distprof.contract.paths import FORMAT
from distprof.merge.writing.merge import merge
from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof


@pytest.fixture
def run(ddp, tmp_path) -> Path:
    """A copy of a real run that a test may break."""
    return Path(shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def fails(run: Path, *words: str, code: int = 1) -> None:
    """Every reading command says it in one line."""
    for command in ("merge", "stats", "comms"):
        done = distprof(command, run)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
        for word in words:
            assert word in done.stderr, (command, done.stderr)
    assert not (run / "merged").exists() and not list(run.glob(".*"))


@pytest.mark.core
def test_a_missing_rank_is_said_and_the_others_are_merged(run):
    shutil.rmtree(run / "rank00002")
    done = distprof("merge", run)
    assert done.returncode == 0 and "rank 2 of 4 missing" in done.stdout
    assert "3 of 4 ranks" in done.stdout
    summary = json.loads((run / "merged" / "summary.json").read_text())
    assert summary["missing_ranks"] == [2] and summary["ranks"] == [0, 1, 3]
    assert "incomplete: rank 2 of 4 missing" in distprof("stats", run).stdout
    for said in (done.stdout, distprof("stats", run).stdout, distprof("comms", run).stdout):
        assert "no rank delays the others" not in said and "No straggler: " not in said, "rank 2 may have"
    assert distprof("stats", "--strict", run).returncode == 3
    assert distprof("comms", "--strict", run).returncode == 3


def test_an_empty_rank_folder_counts_as_missing(run):
    shutil.rmtree(run / "rank00001")
    (run / "rank00001").mkdir()
    done = distprof("merge", run)
    assert done.returncode == 0
    assert "rank00001 cannot be read: it is empty" in done.stdout and "rank 1 of 4 missing" in done.stdout


def test_hundreds_of_empty_rank_folders_are_one_line(run):
    for rank in range(4, 404):
        (run / f"rank{rank:05d}").mkdir()
    for command in ("merge", "stats", "comms"):
        done = distprof(command, run)
        assert done.returncode == 0 and len(done.stdout.splitlines()) < 100, done.stderr
        assert done.stdout.count("rank00004 and 399 more cannot be read: it is empty") == 1


@pytest.mark.parametrize(("values", "why"), [
    ({"run_id": "somebodyelse"}, "its run is somebodyelse"), ({"world_size": 8}, "its world size is 8"),
    ({"rank": 1}, "rank00001 also belongs to rank 1"), ({"mp_size": 2, "dp_size": 2}, "(mp_size, dp_size) is (2, 2)")])
def test_a_rank_that_contradicts_the_others_is_left_out_and_said(run, values, why):
    edit(run / "rank00003" / "rank.json", **values)
    said(run, "rank00003 was skipped", why, "rank 3 of 4 missing", commands=["comms"])


@pytest.mark.parametrize("values", [
    {"rank": -1}, {"rank": 2**40}, {"world_size": 0}, {"world_size": 2**40}, {"mp_size": -2}, {"rank": "x"}])
def test_a_rank_json_with_impossible_numbers_is_damaged(run, values):
    edit(run / "rank00003" / "rank.json", **values)
    said(run, "rank00003 cannot be read", "rank 3 of 4 missing", commands=["stats"])


def test_runs_of_which_half_contradicts_the_other_half_are_refused(run):
    (run / "run.json").unlink()
    for rank in (2, 3):
        edit(run / f"rank0000{rank}" / "rank.json", run_id="somebodyelse")
    fails(run, "ranks differ in run", "somebodyelse in rank00002, rank00003", "hint:")


def test_an_mp_size_that_does_not_divide_the_world_is_refused(run):
    for path in run.glob("rank*/rank.json"):
        edit(path, mp_size=3, dp_size=1)
    fails(run, "world size 4", "mp_size 3", "hint:")


def test_ranks_that_disagree_on_sizes_are_refused(run):
    for rank in range(2):
        edit(run / f"rank0000{rank}" / "rank.json", mp_size=2, dp_size=2)
    fails(run, "ranks differ in (mp_size, dp_size)", "hint: give the sizes")


def test_a_format_of_the_future_is_refused(run):
    for file in run.glob("rank*/rank.json"):
        edit(file, format=FORMAT + 1)
    fails(run, f"has format {FORMAT + 1}", "newer distprof")


@pytest.mark.parametrize(("file", "commands"), [
    ("run.json", ["merge"]), ("rank00002/rank.json", ["stats", "comms"])])
def test_one_file_of_a_format_of_the_future_is_said(run, file, commands):
    edit(run / file, format=FORMAT + 1)
    said(run, f"has format {FORMAT + 1}", commands=commands)


def said(run: Path, *words: str, commands: Sequence[str] = ("merge", "stats", "comms")) -> None:
    """Every reading command goes on, says it, and ends with 3 under --strict."""
    for command in commands:
        done = distprof(command, *(["--force"] if command == "merge" else []), run)
        assert done.returncode == 0, (command, done.stderr)
        for word in words:
            assert word in done.stdout, (command, done.stdout)
        strict = distprof(command, "--strict", *(["--force"] if command == "merge" else []), run)
        assert strict.returncode == 3 and words[0] in strict.stderr, (command, strict.stderr)


@pytest.mark.parametrize("content", ["", "{", '{"format": 1}', "[]", "\x00\x01"])
def test_a_damaged_rank_json_is_said_and_the_others_are_merged(run, content):
    (run / "rank00000" / "rank.json").write_text(content)
    said(run, "rank00000/rank.json", "incomplete: ", "rank 0 of 4 missing", commands=["stats"])


def test_a_rank_json_that_is_damaged_leaves_the_others_in_the_merge(run):
    (run / "rank00000" / "rank.json").write_text("{")
    said(run, "rank00000/rank.json", "incomplete: ", "rank 0 of 4 missing")
    summary = json.loads((run / "merged" / "summary.json").read_text())
    assert summary["ranks"] == [1, 2, 3] and summary["per_gpu"]["fwd_flops"]["mean"] > 0


def in_the_place_of(path: Path, what: str) -> None:
    path.unlink(missing_ok=True)
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)


@pytest.mark.parametrize(("file", "words", "what"), [
    *(("rank00001/rank.json", ["rank00001 cannot be read", "rank 1 of 4 missing"], what)
      for what in ("a pipe", "a device", "1099511627776 bytes")),
    ("run.json", ["run.json"], "a pipe"),
    ("rank00001/stuck.json", ["rank 1: stuck.json cannot be read"], "a device"),
    ("rank00001/steps.ndjson", ["rank 1: steps.ndjson cannot be read"], "1099511627776 bytes")])
def test_what_never_ends_in_the_place_of_a_description_is_named_and_not_read(run, file, words, what):
    if file.endswith("ndjson"):
        (run / "rank00001" / "steps.parquet").unlink()
    in_the_place_of(run / file, what)
    assert distprof("merge", run).returncode == 0
    done = distprof("comms", run)  # which looks for hangs as well
    assert done.returncode == 0 and all(word in done.stdout for word in [*words, what]), (done.stdout, done.stderr)


def test_a_run_without_any_rank_json_that_can_be_read_is_refused(run):
    for path in run.glob("rank*/rank.json"):
        path.write_text("{")
    fails(run, "no readable rank folders", "rank00003/rank.json", "hint:")


def test_a_damaged_run_json_is_said(run):
    (run / "run.json").write_text("{")
    said(run, "run.json is not as distprof wrote it", commands=["stats", "comms"])
    assert "4 of 4 ranks" in distprof("merge", "--force", run).stdout


def test_a_cut_trace_is_said_and_the_others_are_merged(run):
    path = run / "rank00001" / "trace.json.gz"
    path.write_bytes(path.read_bytes()[:5000])
    done = distprof("merge", run)
    assert done.returncode == 0, done.stderr
    assert "incomplete: rank 1: trace.json.gz is cut at byte 5000" in done.stdout
    events = json.loads(gzip.decompress((run / "merged" / "trace.json.gz").read_bytes()))["traceEvents"]
    assert {0, 2, 3} <= {event["pid"] // 16384 for event in events}
    problems = json.loads((run / "merged" / "summary.json").read_text())["problems"]
    assert any((one["code"], one.get("rank")) == ("trace_damaged", 1) for one in problems)
    assert distprof("merge", "--strict", "--force", run).returncode == 3


def test_a_run_whose_traces_are_all_damaged_has_its_tables(run):
    for path in run.glob("rank*/trace.json.gz"):
        path.write_bytes(b"")
    done = distprof("merge", run)
    assert done.returncode == 0 and "no rank has a readable timeline" in done.stdout, done.stderr
    assert done.stdout.count("an empty file") == 4
    assert not (run / "merged" / "trace.json.gz").exists()
    assert json.loads(distprof("stats", "--json", run).stdout)["per_gpu"]["fwd_flops"]["mean"] > 0


@pytest.mark.parametrize("damage", [lambda content: content[:500], lambda content: b"",
                                    lambda content: content[:-4] + b"PARX"])
def test_a_damaged_table_is_said_and_the_other_ranks_count(run, damage):
    whole = json.loads(distprof("stats", "--json", run).stdout)
    path = run / "rank00001" / "ops.parquet"
    path.write_bytes(damage(path.read_bytes()))
    done = distprof("stats", run)
    assert done.returncode == 0 and done.stdout.count("incomplete: rank 1: ops.parquet cannot be read") == 1
    assert distprof("stats", "--strict", run).returncode == 3
    left = json.loads(distprof("stats", "--json", run).stdout)
    assert left["per_gpu"]["fwd_flops"]["mean"] == whole["per_gpu"]["fwd_flops"]["mean"]
    assert left["per_gpu"]["params"]["max_rank"] is not None and left["ranks"] == [0, 1, 2, 3]


TABLES = ("steps", "ops", "modules", "events", "collectives")


@pytest.mark.parametrize("content", [b"PAR1", b"", b"\0" * 5000])
def test_every_damaged_table_is_said_by_every_command_that_reads_it(run, content):
    for name in TABLES:
        (run / "rank00001" / f"{name}.parquet").write_bytes(content)
    for command in ("merge", "stats", "comms"):
        done = distprof(command, run)
        assert done.returncode == 0, done.stderr
        for name in TABLES if command != "comms" else ("steps", "events", "collectives"):
            assert f"rank 1: {name}.parquet cannot be read" in done.stdout, (command, name, done.stdout)
        if command == "merge":
            assert "4 of 4 ranks" in done.stdout, "the other ranks know where time begins"
            shutil.rmtree(run / "merged")


def test_flipped_bits_in_tables_are_said_by_every_command_that_reads_them(run):
    whole = {name: (run / "rank00001" / f"{name}.parquet").read_bytes() for name in TABLES}
    chance = random.Random(5)
    for _ in range(2):
        for name, content in whole.items():
            place, bit = divmod(chance.randrange(8 * (len(content) - MARK_BYTES)), 8)
            place += MARK_BYTES if place >= content.index(MARK) else 0
            flipped = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1:]
            (run / "rank00001" / f"{name}.parquet").write_bytes(flipped)
        for command in ("merge", "stats", "comms"):
            done = distprof(command, run)
            assert (done.returncode, done.stderr) == (0, "")
            for name in TABLES if command != "comms" else ("steps", "events", "collectives"):
                assert f"rank 1: {name}.parquet cannot be read: its checksum" in done.stdout, (command, name)
        shutil.rmtree(run / "merged")


def test_tables_of_another_schema_are_damaged(run):
    for name in TABLES:
        pl.DataFrame({"a": ["x"]}).write_parquet(run / "rank00001" / f"{name}.parquet")
    done = distprof("merge", run)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert all(f"rank 1: {name}.parquet cannot be read" in done.stdout for name in TABLES), done.stdout


def test_a_damaged_merge_is_computed_anew_where_the_ranks_are_there(run):
    assert distprof("merge", run).returncode == 0
    whole = [distprof("stats", *flags, run).stdout for flags in ((), ("--modules",))]
    for name in ("summary.json", "modules.parquet"):
        (run / "merged" / name).write_bytes(b"\xff{")
    assert [distprof("stats", *flags, run).stdout for flags in ((), ("--modules",))] == whole


def test_damaged_lines_of_steps_cost_themselves(run):
    folder = run / "rank00001"
    rows = pl.read_parquet(folder / "steps.parquet").drop("rank", "mp_size", "dp_size")
    (folder / "steps.parquet").unlink()
    lines = rows.write_ndjson().encode().splitlines()
    lines[1] = b'{"step": \xff}'
    (folder / "steps.ndjson").write_bytes(b"\n".join(lines) + b'\n{"step"')
    done = distprof("stats", run)
    assert done.returncode == 0 and "steps.ndjson cannot be read: 1 of its lines are not JSON" in done.stdout


def test_a_lost_table_is_said(run):
    (run / "rank00001" / "collectives.parquet").unlink()
    done = distprof("merge", run)
    assert done.returncode == 0 and "rank 1 lacks collectives.parquet" in done.stdout


@pytest.mark.parametrize(("make", "why"), [
    (lambda path: None, "does not exist"), (Path.touch, "is not a Chrome trace but an empty file"),
    (Path.mkdir, "no Chrome traces in")])
def test_what_is_no_run_directory_is_said(tmp_path, make, why):
    make(tmp_path / "x")
    fails(tmp_path / "x", why, "hint:")


def test_a_merge_goes_where_out_says(run, tmp_path):
    done = distprof("merge", run, "--out", tmp_path / "far" / "merge")
    assert done.returncode == 0 and not (run / "merged").exists(), done.stderr
    assert {path.name for path in (tmp_path / "far" / "merge").iterdir()} == {
        "trace.json.gz", "summary.json", "modules.parquet", "collectives.parquet", "steps.parquet", "events.parquet"}
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["merge"]
    assert distprof("stats", "--json", tmp_path / "far" / "merge").stdout == distprof("stats", "--json", run).stdout
    assert distprof("stats", "--modules", tmp_path / "far" / "merge").returncode == 0


@pytest.mark.parametrize("flags", [(), ("--force",)])
def test_out_replaces_nothing_but_a_merge(run, tmp_path, flags):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    done = distprof("merge", run, "--out", tmp_path / "mine", *flags)
    assert done.returncode == 1 and "has other files" in done.stderr
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("summary", ["{}", '{"format": 1, "world_size": 1, "per_gpu": {}}'])
def test_traces_are_never_replaced_by_their_merge(tmp_path, summary):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 2, "pid": 1}]}')
    (folder / "summary.json").write_text(summary)
    for out in (folder, tmp_path):
        (out / "summary.json").write_text(summary)
        done = distprof("merge", folder, "--out", out, "--force")
        assert done.returncode == 1 and "choose another --out" in done.stderr, done.stderr
    assert {path.name for path in folder.iterdir()} == {"rank0.json", "rank1.json", "summary.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"traces", "summary.json"}


def test_two_merges_of_a_run_at_once_do_not_meet(run):
    jobs = [forked.popen([sys.executable, "-m", "distprof", "merge", run, "--force"], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, env=clean_environ()) for _ in range(2)]
    told = [job.communicate(timeout=PATIENCE_S)[0] for job in jobs]
    assert 0 in [job.returncode for job in jobs], told
    assert "4 of 4 ranks" in distprof("merge", run, "--force").stdout and not list(run.glob(".*"))


def test_out_may_be_a_link_to_an_empty_folder(run, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for flags in ((), ("--force",)):
        done = distprof("merge", run, "--out", tmp_path / "link", *flags)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "real" / "trace.json.gz").exists() and (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} - {"run"} == {"real", "link"}


def test_out_may_be_a_mount_point_which_cannot_be_renamed(run, tmp_path, monkeypatch):
    out = tmp_path / "mount"
    out.mkdir()
    inode = out.stat().st_ino
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == out)
    for force in (False, True):
        assert "4 of 4 ranks" in merge(run, out=out, force=force)
        assert {path.name for path in out.iterdir()} == {
            "trace.json.gz", "summary.json", "events.parquet",
            *(f"{table}.parquet" for table in ("modules", "collectives", "steps"))}
    assert out.stat().st_ino == inode


def test_an_earlier_merge_is_kept_without_force(run):
    assert distprof("merge", run).returncode == 0
    before = (run / "merged" / "trace.json.gz").stat().st_mtime_ns
    again = distprof("merge", run)
    assert again.returncode == 1 and "--force" in again.stderr
    assert (run / "merged" / "trace.json.gz").stat().st_mtime_ns == before
    assert distprof("merge", "--force", run).returncode == 0
    assert (run / "merged" / "trace.json.gz").stat().st_mtime_ns > before


def test_a_merge_that_finds_the_disk_full_leaves_nothing(run):
    limit = (run / "rank00000" / "trace.json.gz").stat().st_size // 2
    done = forked.run(
        [sys.executable, "-m", "distprof", "merge", run], capture_output=True, text=True, env=clean_environ(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), check=False)
    assert done.returncode == 1 and "cannot write" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (run / "merged").exists() and not list(run.glob(".*"))


@pytest.mark.job
def test_a_disk_that_fills_while_recording_never_stops_training(tmp_path):
    script = tmp_path / "limited.py"
    script.write_text("import resource, runpy\nresource.setrlimit(resource.RLIMIT_FSIZE, (16000, 16000))\n"
                      f"runpy.run_path({str(SCRIPTS / 'job.py')!r}, run_name='__main__')\n")
    done = distprof("run", "--out", tmp_path / "run", "--nproc-per-node", 1, script, "fine")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rank 0 to stdout\n"
    told = [line for line in done.stderr.splitlines() if "recording stopped, training continues" in line]
    assert len(told) == 1 and all("is the disk full" in line or os.strerror(27) in line for line in told), told
    merged = distprof("merge", tmp_path / "run")
    assert merged.returncode == 0 and "rank 0 failed" in merged.stdout
    # what was flushed before the disk was full is there
    assert json.loads(distprof("stats", "--json", tmp_path / "run").stdout)["per_gpu"]["fwd_macs"]["mean"] == 576


def test_a_summary_of_an_older_version_is_computed_anew(run):
    assert distprof("merge", run).returncode == 0
    path = run / "merged" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in summary.items() if key != "remarks"}))
    assert json.loads(distprof("stats", "--json", run).stdout) == summary
    path.write_text("{")
    assert json.loads(distprof("stats", "--json", run).stdout) == summary


def test_a_closed_or_full_output_is_no_bug_of_ours(run):
    shell = f"{sys.executable} -m distprof stats {run}"
    for where, code, said in ((">/dev/full", 1, "cannot write the result"), ("| head -c 1", 0, ""), (">&-", None, "")):
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {shell} {where}"], capture_output=True, text=True,
                              env=clean_environ(), check=False)
        assert "please report" not in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert said in done.stderr
        assert code is None or done.returncode in (code, 141)


@pytest.mark.job
def test_an_unknown_command_suggests_one():
    done = distprof("mrege", "x")
    assert done.returncode == 2 and "did you mean `distprof merge`?" in done.stderr
    assert "distprof run train.py" in distprof("train.py").stderr


@pytest.mark.parametrize("flags", [("--op", "all_redcue"), ("--step", "99")])
def test_comms_of_what_is_not_there_lists_what_is(ddp, flags):
    done = distprof("comms", *flags, ddp)
    assert done.returncode == 2
    assert "did you mean --op 'all_reduce'?" in done.stderr or "steps with communication: 6-" in done.stderr
