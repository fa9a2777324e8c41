"""Jobs of many kinds end as they would have: exit code, output, files and weights, with and without distprof."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.unharmed import Job, Left, as_rank, by_start_hook, jobs, plainly, status_of

JOBS = jobs()


def each(of: list[Job]) -> list:
    return [pytest.param(job, id=job.name, marks=pytest.mark.job if job.telling else pytest.mark.stress) for job in of]


def expect_unharmed(job: Job, plain: Left, found: tuple[Left, str], run: Path) -> None:
    ours, said = found
    assert plain.code == job.ends, plain
    assert ours == plain, said
    status = status_of(run)
    assert job.recorded == "any" or status == job.recorded, (status, said)
    assert job.says in said if job.says else job.recorded == "any" or job.ranks > 1 or said == ""


def test_there_are_sixty_kinds():
    assert len(JOBS) >= 60
    assert all((job.path if job.path.is_file() else job.path / "job.py").read_text().startswith('"""') for job in JOBS)


@pytest.mark.parametrize("job", each([job for job in JOBS if job.command[0] != "-"]))
def test_a_job_is_unharmed_as_our_launcher_starts_it(tmp_path, job):
    plain = plainly(job, tmp_path / "job")
    expect_unharmed(job, plain, as_rank(job, tmp_path / "job", tmp_path / "run"), tmp_path / "run")


@pytest.mark.stress
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("job", [pytest.param(job, id=job.name) for job in JOBS])
def test_a_job_is_unharmed_where_the_start_hook_records_it(python, tmp_path, job, real):
    """In a forked process, and in one that starts."""
    real |= job.real or job.command[0] == "-"
    program = python if real else sys.executable
    found = by_start_hook(job, tmp_path / "job", tmp_path / "run", program, real=real)
    expect_unharmed(job, plainly(job, tmp_path / "job", program, real=real), found, tmp_path / "run")
