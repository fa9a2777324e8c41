"""Queues of devices in the merged trace, before the real Perfetto engine."""

from __future__ import annotations

from support.jobs import called
from support.made_up_traces import folder, op
from support.perfetto import ERRORS, ask

COUNTERS = """select process.name as process, process_counter_track.name as name, ts, value
              from counter join process_counter_track on track_id = process_counter_track.id join process using (upid)
              order by ts, counter.id"""


def sent(number: int, at: float, begins: float, ends: float, *, stream: int = 7) -> list[dict[str, object]]:
    """A launch that takes 2 us, and its kernel."""
    return [op("cudaLaunchKernel", at, 2, cat="cuda_runtime", correlation=number),
            op(f"kernel{number}", begins, ends - begins, cat="kernel", tid=stream, correlation=number, device=0,
               stream=stream) | {"pid": 0}]


def test_each_stream_has_a_counter_of_commands_that_have_not_begun(tmp_path):
    """By hand: sent at 12, 15 and 18 us; begun at 14, 24 and 34. Another stream's begins while its call still runs."""
    slices = [*sent(1, 10, 14, 24), *sent(2, 13, 24, 34), *sent(3, 16, 34, 44), *sent(4, 20, 21, 22, stream=9)]
    run = folder(tmp_path, [op("ProfilerStep#1", 5, 60, cat="user_annotation"), *slices])
    assert called("merge", "--queues", run).returncode == 0
    answer = ask(run / "merged" / "trace.json.gz", ERRORS, COUNTERS)
    assert answer.results[0] == []
    rows = [row for row in answer.results[1] if "queue" in row["name"]]
    assert {row["name"] for row in rows} == {"queue GPU 0 stream 7 commands"}
    origin = rows[0]["ts"] - 12_000
    assert [((row["ts"] - origin) // 1000, row["value"]) for row in rows] == [
        (12, 1), (14, 0), (15, 1), (18, 2), (24, 1), (34, 0)]


def test_without_devices_nothing_is_drawn(tmp_path):
    run = folder(tmp_path, [op("aten::add", 5, 60)])
    assert called("merge", "--queues", run).returncode == 0
    assert not any("queue" in row["name"] for row in ask(run / "merged" / "trace.json.gz", COUNTERS).results[0])


def test_formats_that_pack_files_unchanged_draw_nothing(tmp_path):
    run = folder(tmp_path, [op("aten::add", 5, 60)])
    done = called("merge", "--queues", "--format", "perfetto-tar", run)
    assert done.returncode == 2 and "cannot be combined" in done.stderr
