"""The end of `distprof run`: its merge and answer, and what is said where there is none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RanksDirectory, RunJson
from distprof.launch import job_end
from distprof.launch.hosts.protocol import End, Gathered
from distprof.launch.job_end import finish
from distprof.launch.what_next import what_next
from distprof.merge.text.phrases import step_time_words
from distprof.merge.totals.step_time import step_time_of
from distprof.recording.run_directory import this_launch
from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, called, clean_environ, run_and_merge, wait_for
from support.rank_traces import slice_of, write_run

SHORT = ("--steps", "wait=1,count=1,time=1,trace=2,arrivals=0")


@pytest.mark.core
@pytest.mark.job
def test_a_job_ends_with_the_answer_and_the_next_commands(tmp_path):
    out = tmp_path / "run"
    done = run_and_merge("--out", out, "--nproc-per-node", 2, *SHORT, SCRIPTS / "job.py", "fine")
    assert done.returncode == 0, done.stderr
    assert "distprof" not in done.stdout and "ranks" not in done.stdout, "that is the script's"
    said = done.stderr.splitlines()
    began = next(index for index, line in enumerate(said) if line.startswith("distprof: merged in "))
    following = said.index("Next:")
    lines = [line.removeprefix("    ") for line in said[began + 1:following]]
    assert 4 < len(lines) <= 10 and lines[0].startswith("2 ranks = dp 2: step "), done.stderr
    assert re.fullmatch(r"all 2 ranks complete; steps 0-4 of \d+ recorded", lines[-1])
    assert len(said[following + 1:]) == 3
    assert all(line.startswith("    distprof ") and line.endswith(str(out)) for line in said[following + 1:])
    found = json.loads((out / "merged" / "summary.json").read_text())
    usual = step_time_of(found["step"])
    assert found["ranks"] == [0, 1] and usual is not None and f"step {step_time_words(usual)}" in lines[0]
    assert (out / "merged" / "trace.json.gz").is_file()


@pytest.mark.parametrize(("is_built", "suffix", "says"), [(False, ".partial", True), (True, ".partial", False),
                                                          (False, "", False)])
def test_where_ranks_could_not_write_when_they_were_stopped_it_is_said_why(tmp_path, monkeypatch, capsys, is_built,
                                                                          suffix, says):
    monkeypatch.setattr(job_end, "is_built", lambda: is_built)
    write_run(tmp_path / "run", [[slice_of("step", 0, 10)]])
    (tmp_path / "run" / "rank00000").rename(tmp_path / "run" / f"rank00000{suffix}")
    finish(tmp_path / "run", this_launch(run_id="made", plan="", world_size=1, sizes={}), 143, {}, merges=False)
    assert ("keeps only what it had written" in capsys.readouterr().err) == says


@pytest.mark.job
def test_a_merge_that_fails_leaves_the_exit_code_to_the_script(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, pathlib, runpy, sys\n"
        "notes = pathlib.Path(os.environ['DISTPROF_OUT'], 'merged', 'mine')\n"
        "notes.parent.mkdir()\nnotes.touch()\n"  # nothing but a merge is replaced
        f"sys.argv = ['job.py', 'fine']\nrunpy.run_path({str(SCRIPTS / 'job.py')!r}, run_name='__main__')\n")
    out = tmp_path / "run"
    done = run_and_merge("--out", out, *SHORT, tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    assert " has other files: --out must be new" in done.stderr and "distprof: not merged. Next:" in done.stderr
    assert done.stderr.endswith(f"    distprof merge {out}\n") and "Traceback" not in done.stderr
    assert [path.name for path in (out / "merged").iterdir()] == ["mine"]


@pytest.mark.job
def test_a_job_that_failed_is_not_merged(tmp_path):
    out = tmp_path / "run"
    done = run_and_merge("--out", out, "--nproc-per-node", 2, *SHORT, SCRIPTS / "job.py", "raises")
    assert done.returncode == 1 and not (out / "merged").exists(), done.stderr
    assert done.stderr.endswith(f"ranks recorded. Next:\n    distprof merge {out}\n    distprof comms {out}\n"
                                f"    distprof report {out}\n")


@pytest.mark.job
def test_a_job_that_is_interrupted_after_its_last_pass_ends_like_any_other(tmp_path):
    (tmp_path / "long.py").write_text(
        f"import runpy, sys, time\nsys.argv = ['job.py', 'fine']\nrunpy.run_path({str(SCRIPTS / 'job.py')!r}, "
        "run_name='__main__')\ntime.sleep(600)\n")
    out = tmp_path / "run"
    job = forked.popen([sys.executable, "-m", "distprof", "run", "--out", out, "--nproc-per-node", "2", *SHORT,
                        tmp_path / "long.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       env=clean_environ(), start_new_session=True)
    wait_for(job, out / "rank00000" / "rank.json", out / "rank00001" / "rank.json")
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does it
    _, said = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 130, said
    assert "2 of 2 ranks recorded. The script was interrupted after that. Merging (skip with --no-merge)" in said
    assert " complete; steps 0-" in said and f"    distprof report {out}\n" in said
    about = json.loads((out / "run.json").read_text())
    assert about["interrupted"] and about["failed_rank"] is None and about["exit_code"] == 130
    summary = json.loads((out / "merged" / "summary.json").read_text())
    assert summary["problems"] == [] and {"code": "script_interrupted"} in summary["remarks"]
    assert what_next(out)[0].startswith("distprof report ")
    report = called("report", "--markdown", out).stdout
    assert "failed" not in report and "interrupted after the recording was complete" in report


@pytest.mark.job
def test_a_signal_during_the_merge_ends_it_and_not_the_job(tmp_path):
    (tmp_path / "waits.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom distprof.launch import final_merge\n"
        "final_merge.MERGE = \"from pathlib import Path; import sys, time; "
        "Path(sys.argv[-1], 'pid').write_text(str(__import__('os').getpid())); "
        "Path(sys.argv[-1], 'begun').touch(); time.sleep(600)\"\n"
        "print(final_merge.final_merge(Path(sys.argv[1])))\n")
    job = forked.popen([sys.executable, tmp_path / "waits.py", tmp_path], stdout=subprocess.PIPE, text=True,
                       env=clean_environ())
    wait_for(job, tmp_path / "begun")
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, out) == (0, "None\n")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


@pytest.mark.job
def test_each_rank_has_one_thread_as_with_torchrun_and_no_warning_says_so(tmp_path):
    (tmp_path / "threads.py").write_text("import os\nos.write(1, (os.environ['OMP_NUM_THREADS'] + '\\n').encode())\n")
    environ = {name: value for name, value in clean_environ().items() if name != "OMP_NUM_THREADS"}
    told = [forked.run([sys.executable, "-m", *words, "--nproc-per-node", "2", tmp_path / "threads.py"],
                       env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
            for words in (("torch.distributed.run", "--standalone"), ("distprof", "run", "--out", tmp_path / "run"))]
    assert told[0].stdout == told[1].stdout
    assert "OMP_NUM_THREADS" in told[0].stderr and "OMP_NUM_THREADS" not in told[1].stderr


def test_a_job_that_is_interrupted_in_the_midst_of_its_plan_is_not_merged(tmp_path, capfd):
    run = write_run(tmp_path / "run", [slice_of("a", 0, 1)], [slice_of("b", 0, 1)])
    path = run / "rank00001" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "partial", "why": "signal SIGINT after 3"}))
    finish(run, this_launch(run_id="made", plan="", world_size=2, sizes={}), 130, {"failed_rank": 1}, merges=True)
    said = capfd.readouterr().err.splitlines()
    assert said == ["distprof: 2 of 2 ranks recorded. Next:", f"    distprof merge {run}", f"    distprof comms {run}"]
    about = json.loads((run / "run.json").read_text())
    assert (about["exit_code"], about["interrupted"], about["failed_rank"]) == (130, False, 1)
    assert not (run / "merged").exists()


@pytest.mark.parametrize(("status", "ends", "merged"), [
    ("complete", [End(exit_code=130, failed={"failed_rank": 1, "failed_ns": 5})], True),
    ("complete", [End(exit_code=130), End(exit_code=0), End(exit_code=130)], True),
    ("partial", [End(exit_code=130)], False),
    ("complete", [End(exit_code=130), End(exit_code=1, failed={"failed_rank": 1, "failed_ns": 5})], False)])
def test_several_hosts_that_are_interrupted_after_the_last_pass_are_merged_as_one_is(tmp_path, monkeypatch, status,
                                                                                     ends, merged):
    did = []
    monkeypatch.setattr(job_end, "_merge", lambda directory, *_: did.append(directory))
    run = write_run(tmp_path / "run", [slice_of("a", 0, 1)], [slice_of("b", 0, 1)])
    path = run / "rank00001" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": status}))
    gathered = Gathered(role="first", num_copied=len(ends), ends=ends)
    finish(run, this_launch(run_id="made", plan="", world_size=2, sizes={}), 130, {}, merges=True, is_alone=False,
           gathered=gathered)
    assert did == ([run] if merged else [])
    about = json.loads((run / "run.json").read_text())
    assert (about["interrupted"], about["failed_rank"]) == (merged, 1 if ends[-1].exit_code == 1 else None)


@pytest.mark.parametrize(("merges", "code", "others"), [(False, 0, False), (True, 1, False), (True, 0, True)])
def test_what_is_not_merged_here_is_said_with_the_command(tmp_path, capfd, merges, code, others):
    run = write_run(tmp_path / "run", [slice_of("a", 0, 1)], [slice_of("b", 0, 1)])
    about = this_launch(run_id="made", plan="", world_size=4, sizes={})
    elsewhere = RanksDirectory(identity="x", path="/data/other", hosts=["host-b"], ranks=[2, 3])
    rank_json.write(run / "run.json", replace(about, directories=[elsewhere] if others else []))
    finish(run, about, code, {}, merges=merges)
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("distprof: 2 of 4 ranks recorded.") and not (run / "merged").exists()
    assert said[1] == f"    distprof merge {run}{' /data/other' if others else ''}"
    assert said[2:] == ([f"    distprof comms {run}"] if code else [])


@pytest.mark.parametrize("uploaded_to", [None, "s3://bucket/run"])
def test_of_several_hosts_the_command_that_joins_them_is_one_that_finds_all_ranks(tmp_path, capsys, uploaded_to):
    places = [RanksDirectory(identity=f"of {name}", path=f"/data/{name}", hosts=[f"host-{name}"], ranks=[rank])
              for rank, name in enumerate("ab")]
    about = RunJson(run_id="made", world_size=2, directory_id="of a", directories=places)
    rank_json.write(tmp_path / RUN_JSON, about)
    (tmp_path / "rank00000").mkdir()
    rank_json.write(tmp_path / "rank00000" / RANK_JSON,
                    RankJson(run_id="made", status="complete", rank=0, world_size=2))
    finish(tmp_path, about, 0, {}, merges=False, uploaded_to=uploaded_to)
    *_, last = capsys.readouterr().err.splitlines()
    wanted = f"{tmp_path} /data/b" if uploaded_to is None else uploaded_to
    assert last == f"    distprof merge {wanted}"
