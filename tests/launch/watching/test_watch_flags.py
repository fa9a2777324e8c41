"""Flags of `distprof run` about its watch: what is wrong is one line before the job begins."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from distprof.contract.run_json import job_command
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


@pytest.mark.parametrize("text", ["", "localhost:4318", "grpc://host:4317", "http://", "http://host:4318/v1/metrics",
                                  "https://host/v1/logs/"])
def test_what_is_no_collector(text):
    with pytest.raises(UsageError, match=r"--otlp must be the http.s. URL of a collector.*hint: --otlp http"):
        wanted(otlp=text, is_on=True)


def test_a_wrong_collector_shows_no_password():
    with pytest.raises(UsageError) as raised:
        wanted(otlp="grpc://me:verysecret@host:1", is_on=True)
    assert "verysecret" not in str(raised.value)


@pytest.mark.parametrize("flags", [{"metrics": "9464"}, {"on_finding": "true"}, {"otlp": "http://host:4318"},
                                   {"log_to": "tensorboard"}, {"log_to": "wandb"}])
def test_without_a_watch_there_is_nothing_to_tell(flags):
    with pytest.raises(UsageError, match="needs the watch"):
        wanted(**({"metrics": None, "on_finding": None} | flags), is_on=False)


def test_without_a_watch_there_is_none():
    assert wanted(metrics=None, on_finding=None, is_on=False) is None


def test_a_package_that_is_missing_is_named_before_the_job_begins(monkeypatch):
    monkeypatch.setattr(watch_process, "find_spec", lambda name: None if "prometheus" in name else find_spec(name))
    with pytest.raises(UsageError, match="needs the package prometheus-client  hint: pip install"):
        wanted(metrics="9464", on_finding=None, is_on=True)
    monkeypatch.setattr(watch_process, "find_spec", lambda name: None if "opentelemetry" in name else find_spec(name))
    with pytest.raises(UsageError, match="needs the package opentelemetry-exporter-otlp-proto-http  hint: pip install"):
        wanted(otlp="http://host:4318", is_on=True)
    monkeypatch.setattr(watch_process, "find_spec", lambda name: None if "tensorboard" in name else find_spec(name))
    with pytest.raises(UsageError, match="needs the package tensorboard  hint: pip install"):
        wanted(log_to="tensorboard", is_on=True)


def test_a_folder_that_wandb_left_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(one for one in sys.path if "site-packages" not in one)])
    with pytest.raises(UsageError, match="--log-to wandb needs the package wandb  hint: pip install"):
        wanted(log_to="wandb", is_on=True)


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--metrics", "x"), ("--on-finding", "ftp://a/b"),
                                   ("--watch", "off", "--on-finding", "true")])
def test_a_job_with_a_wrong_flag_does_not_begin(tmp_path, flags):
    done = called("run", "--out", tmp_path / "run", *flags, SCRIPTS / "alike.py")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "hint:" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [("--on-finding", HOOK), (f"--on-finding={HOOK}",), ("--otlp", HOOK),
                                   (f"--otlp={HOOK}",)])
def test_the_address_of_a_webhook_is_stored_nowhere(words):
    argv = [sys.executable, "-m", "distprof", "run", *words, "train.py", "--lr", "0.1"]
    assert HOOK not in " ".join(without_secrets(argv)) and "***" in " ".join(without_secrets(argv))


def test_flags_of_the_watch_are_no_part_of_the_job():
    words = ["--metrics", "9464", "--on-finding=true", "--otlp", "http://h:1", "--log-to=tensorboard",
             "--nproc-per-node", "4", "train.py", "--metrics"]
    assert job_command(["distprof", "run", *words]) == ["--nproc-per-node", "4", "train.py", "--metrics"]
