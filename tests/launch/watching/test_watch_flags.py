"""Flags of `distprof run` about its watch: what is wrong is one line before the job begins."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from distprof.contract.job_command import job_command
from distprof.errors import UsageError
from distprof.hidden import without_secrets
from distprof.launch.watching import watch_process
from distprof.launch.watching.watch_process import wanted
from distprof.launch.watching.watcher_protocol import address
from support.jobs import SCRIPTS, called

HOOK = "https://chat.example/hooks/T0/B0/abcdef"


@pytest.mark.parametrize(("text", "found"), [
    ("9464", ("", 9464)), ("localhost:9464", ("localhost", 9464)), ("[::1]:1", ("::1", 1)), (":65535", ("", 65535))])
def test_addresses(text, found):
    assert address(text, "--metrics") == found


@pytest.mark.parametrize("text", ["", "abc", "0", "-1", "65536", "host:", "host:a", "9464:host", "\uff19\uff14", "1.5"])
def test_what_is_no_port(text):
    with pytest.raises(UsageError, match="--metrics must be a port from 1 to 65535, or HOST:PORT"):
        wanted(metrics=text, on_finding=None, is_on=True)


@pytest.mark.parametrize("text", ["", "  ", "ftp://host/a", "s3://bucket/a"])
def test_what_cannot_be_told(text):
    with pytest.raises(UsageError, match="must be a command or an http"):
        wanted(metrics=None, on_finding=text, is_on=True)


@pytest.mark.parametrize("flags", [{"metrics": "9464"}, {"on_finding": "true"}])
def test_without_a_watch_there_is_nothing_to_tell(flags):
    with pytest.raises(UsageError, match="needs the watch"):
        wanted(**({"metrics": None, "on_finding": None} | flags), is_on=False)


def test_without_a_watch_there_is_none():
    assert wanted(metrics=None, on_finding=None, is_on=False) is None


def test_a_package_that_is_missing_is_named_before_the_job_begins(monkeypatch):
    monkeypatch.setattr(watch_process, "find_spec", lambda name: None if "prometheus" in name else find_spec(name))
    with pytest.raises(UsageError, match="needs the package prometheus-client  hint: pip install"):
        wanted(metrics="9464", on_finding=None, is_on=True)


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--metrics", "x"), ("--on-finding", "ftp://a/b"),
                                   ("--watch", "off", "--on-finding", "true")])
def test_a_job_with_a_wrong_flag_does_not_begin(tmp_path, flags):
    done = called("run", "--out", tmp_path / "run", *flags, SCRIPTS / "alike.py")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "hint:" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [("--on-finding", HOOK), (f"--on-finding={HOOK}",)])
def test_the_address_of_a_webhook_is_stored_nowhere(words):
    argv = [sys.executable, "-m", "distprof", "run", *words, "train.py", "--lr", "0.1"]
    assert HOOK not in " ".join(without_secrets(argv)) and "***" in " ".join(without_secrets(argv))


def test_flags_of_the_watch_are_no_part_of_the_job():
    words = ["--metrics", "9464", "--on-finding=true", "--nproc-per-node", "4", "train.py", "--metrics"]
    assert job_command(["distprof", "run", *words]) == ["--nproc-per-node", "4", "train.py", "--metrics"]
