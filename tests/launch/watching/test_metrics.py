"""Metrics of a job, as a real Prometheus reads them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from distprof.contract.watch_state import WatchState
from distprof.launch.watching.metrics import MetricsServer, exposition
from distprof.launch.watching.watch_process import WatchProcess
from support.jobs import ROOT
from support.made_up_states import job_state, rank_state, slow_rank
from support.ports import free_port
from support.watched_ranks import PROGRAM, MadeUpRank, make_run, order

pytest.importorskip("prometheus_client")
PATIENCE_S = 60.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus: .ci/run")


def series(state: WatchState | None, accept: str = "") -> dict[str, float]:
    """Of the exposition, by what stands before the value."""
    lines = exposition(state, accept)[0].decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_names_have_base_units_and_unknown_values_are_not_there():
    found = series(job_state())
    assert found['distprof_step_seconds{rank="0"}'] == 0.02
    assert found['distprof_waiting_ratio{rank="1"}'] == 0.02
    assert found['distprof_phase_seconds{phase="forward",rank="1"}'] == 0.023
    assert found['distprof_memory_bytes{rank="0",where="host"}'] == 310 << 20
    assert found['distprof_steps_total{rank="3"}'] == found["distprof_job_steps_total"] == 7000
    assert found['distprof_finding_active{kind="slow_rank",rank="1"}'] == 1
    assert found['distprof_finding_cost_seconds{kind="slow_rank",rank="1"}'] == 68
    assert not [name for name in found if 'where="device"' in name or 'phase="device"' in name]


def test_waiting_is_explained_as_all_the_time_in_collectives():
    """In which data moves, too."""
    text = exposition(job_state(), "")[0].decode()
    help_text = next(line for line in text.splitlines() if line.startswith("# HELP distprof_waiting_ratio "))
    assert help_text.endswith("waits for others, or for data to move.")


def test_a_finding_that_ended_is_0_and_one_of_the_whole_job_has_no_rank():
    found = series(job_state(findings=[slow_rank(2, until_step=6500), slow_rank(id="r", kind="regression", ranks=[])]))
    assert found['distprof_finding_active{kind="slow_rank",rank="2"}'] == 0
    assert found['distprof_finding_active{kind="regression",rank=""}'] == 1


def test_of_two_findings_of_a_kind_and_rank_one_that_goes_on_counts():
    found = series(job_state(findings=[slow_rank(id="a", until_step=6300), slow_rank(id="b")]))
    assert found['distprof_finding_active{kind="slow_rank",rank="1"}'] == 1
    assert found['distprof_finding_cost_seconds{kind="slow_rank",rank="1"}'] == 136


def test_a_rank_has_at_most_100_series():
    full = [rank_state(rank, device_ns=1.0, device_bytes=1) for rank in range(64)]
    kinds = ("slow_rank", "slow_host", "slow_link", "slow_group", "regression", "intermittent", "data_stall",
             "memory_growth", "pauses", "stopped", "hang")
    findings = [slow_rank(rank, id=f"{kind}{rank}{n}", kind=kind) for kind in kinds for rank in range(64)
                for n in range(3)]
    found = series(job_state(ranks=full, findings=findings))
    assert 40 > max(sum(f'rank="{rank}"' in name for name in found) for rank in range(64)) > 20


def test_before_the_first_step_there_is_only_who_watches():
    assert list(series(None)) == ['distprof_build_info{version="0.1.0"}']


def test_names_of_hosts_may_hold_anything():
    hostile = 'a"b\\c\nd\x1b'
    text = exposition(job_state(ranks=[rank_state(0, host=hostile)]), "")[0].decode()
    assert 'distprof_rank_info{host="a\\"b\\\\c\\nd\x1b",rank="0"} 1.0' in text


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_both_formats_are_read_back_by_their_parsers(accept):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
    from prometheus_client.parser import text_string_to_metric_families as plain

    content, content_type = exposition(job_state(), accept)
    families = list((open_metrics if accept else plain)(content.decode()))
    assert ("openmetrics" in content_type) == bool(accept) and len(families) > 10
    assert all(family.documentation for family in families)


def answer(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=PATIENCE_S) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def test_the_server_has_the_state_as_well_and_nothing_else():
    server = MetricsServer("127.0.0.1", 0)
    try:
        assert answer(server.server_port, "/state.json")[0] == 503
        server.state = job_state()
        code, content = answer(server.server_port, "/state.json")
        assert code == 200 and msgspec.json.decode(content, type=WatchState).num_steps == 7000
        assert answer(server.server_port, "/metrics?x=1")[0] == 200
        assert answer(server.server_port, "/../etc/passwd")[0] == 404
    finally:
        server.shutdown()
        server.server_close()


def test_without_a_host_both_versions_of_the_internet_protocol_are_served():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6")
    server = MetricsServer("", 0)
    try:
        for host in ("127.0.0.1", "[::1]"):
            assert answer(server.server_port, "/metrics", host)[0] == 200
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.job
def test_a_port_that_is_taken_is_one_line_and_the_watch_goes_on(tmp_path, capsys):
    server = MetricsServer("", 0)
    try:
        run = make_run(tmp_path / "run")
        watching = WatchProcess(order(run, metrics=str(server.server_port)), PROGRAM)
        MadeUpRank(run, 0).steps(10)
        assert watching.finish() == ["10 steps watched in 200 ms, 20.0 ms per step"]
    finally:
        server.shutdown()
        server.server_close()
    assert capsys.readouterr().err == (
        f"distprof: no metrics: cannot listen on port {server.server_port}: Address already in use\n")


@needs_prometheus
def test_promtool_finds_nothing_to_complain_about():
    done = subprocess.run(["promtool", "check", "metrics"], input=exposition(job_state(), "")[0], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@needs_prometheus
@pytest.mark.job
def test_a_real_prometheus_scrapes_a_watched_job(tmp_path):
    run, port, server = make_run(tmp_path / "run"), free_port(), free_port()
    watching = WatchProcess(order(run, metrics=f"127.0.0.1:{port}"), PROGRAM)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: train\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address=127.0.0.1:{server}"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as prometheus:
        try:
            ranks = [MadeUpRank(run, rank) for rank in range(4)]
            for rank in ranks:
                rank.steps(200)
                rank.steps(100, forward_ms=23 if rank is ranks[1] else 5)
            slow = until_found(server, "distprof_finding_active == 1")
            assert [(one["metric"]["kind"], one["metric"]["rank"]) for one in slow] == [("slow_rank", "1")]
            steps = {one["metric"]["rank"]: one["value"][1] for one in until_found(server, "distprof_step_seconds")}
            assert steps == dict.fromkeys("0123", "0.02")
            assert until_found(server, "distprof_steps_total")[0]["value"][1] == "300"
            target, = asked(server, "targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
        finally:
            prometheus.terminate()
    watching.finish()


def asked(port: int, what: str) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=PATIENCE_S) as found:
        return json.load(found)["data"]


def until_found(port: int, query: str) -> list[dict]:
    """The answer to a query, once there is one."""
    deadline, text = time.monotonic() + PATIENCE_S, urllib.request.quote(query)
    while True:
        try:
            if found := asked(port, f"query?query={text}")["result"]:
                return found
        except OSError:  # it is about to start
            pass
        assert time.monotonic() < deadline, query
        time.sleep(0.2)


def test_the_dashboard_asks_for_metrics_that_exist():
    dashboard = json.loads(Path(ROOT, "docs", "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    full = job_state(ranks=[rank_state(0, device_ns=1.0, device_bytes=1)])
    known = {re.match(r"\w+", name)[0] for name in series(full)}
    used = {name for query in queries for name in re.findall(r"distprof_\w+", query)}
    assert len(queries) >= 8 and used <= known and len(used) >= 8
