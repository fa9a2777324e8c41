"""What programs write beside JSON, and what viewers trip over: traps of joining traces, before the real Perfetto."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from distprof.merge.scan.chunk_reader import ChunkReader, _as_list
from distprof.merge.scan.engine import is_compiled
from distprof.merge.scan.trace_file import TraceFile
from support.perfetto import ERRORS, PLACES, ask, rank_of
from support.rank_traces import files, merge, slice_of, text_of
from support.usual_merge import usual_merge

ARGS = "select s.name as name, a.key as key, a.display_value as value from slice s join args a using (arg_set_id)"
COUNTERS = """select process.name as process, t.name as counter, c.ts as ts, c.value as value from counter c
              join process_counter_track t on c.track_id = t.id join process using (upid) order by t.name, c.ts"""


def shown(answer, result: int = 1) -> list[str]:
    return sorted(row["slice"] for row in answer.results[result])


def usual_fails(run: Path, output: Path) -> str:
    """What Perfetto says to the ranks joined by the usual script."""
    usual_merge(files(run), output)
    answer = ask(output, ERRORS)
    return " ".join([*answer.import_errors, *(row["name"] for row in answer.results[0])])


def test_a_time_that_is_no_number_costs_its_event_alone(tmp_path):
    """NaN as `ts` or `dur` aborts the import of the whole trace."""
    events = [slice_of("a", 10, 5), slice_of("no time", float("nan"), 5), slice_of("no length", 20, float("nan")),
              slice_of("endless", 30, float("inf")), slice_of("before all", float("-inf"), 1)]
    found = merge(tmp_path, [slice_of("b", 10, 5)], events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.import_errors == [] and answer.results[0] == []
    assert shown(answer) == ["a", "b", "endless", "no length"]
    assert found.found.total("num_bad_times") == 2 and found.found.total("num_without_duration") == 2
    assert "Invalid number" in usual_fails(tmp_path / "run", tmp_path / "usual.json")


def test_numbers_in_args_that_are_none_stay_readable(tmp_path):
    """Strict parsers refuse NaN; Perfetto takes a string for a number where it wants one."""
    args = {"nan": float("nan"), "inf": float("inf"), "minus": float("-inf"), "fine": 1.5}
    found = merge(tmp_path, [slice_of("a", 10, 5, args=args), {"ph": "C", "name": "c", "pid": 7, "ts": 12, "args": {
        "value": float("nan")}}])
    assert [event["args"] for event in found.of(0, "X")] == [
        {"nan": "NaN", "inf": "Infinity", "minus": "-Infinity", "fine": 1.5}]
    assert found.found.total("num_repaired") == 2 and ask(found.path, ERRORS).results[0] == []


@pytest.mark.parametrize("is_array", [False, True])
def test_a_cut_file_gives_every_event_that_is_whole(tmp_path, is_array):
    """Perfetto loads nothing of a cut object; other programs nothing of a cut array."""
    events = [slice_of(f"s{number}", 10 * number, 5) for number in range(20)]
    text = json.dumps(events if is_array else {"traceEvents": events}).encode()
    cut = text[:text.index(b'"s15"') + 8]
    found = merge(tmp_path, [slice_of("other", 5, 1)], cut)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and shown(answer) == sorted(["other", *(f"s{number}" for number in range(15))])
    losses = found.found.counts[1].losses
    assert losses.is_cut and losses.lost_bytes == len(cut) - cut.rindex(b'{"ph"')
    with pytest.raises(json.JSONDecodeError):
        usual_merge(files(tmp_path / "run"), tmp_path / "usual.json")


def test_commas_too_many_empty_events_and_keys_behind_are_no_damage(tmp_path):
    """Perfetto takes them, `json.loads` does not; what stands beside the events is kept."""
    event = json.dumps(slice_of("a", 10, 5))
    text = ('{"first": {"a": [1, {}]}, "traceEvents": [{}, ' + event + ", {}, " + event
            + ',], "last": "x ] }", "more": null}')
    found = merge(tmp_path, text, [slice_of("b", 10, 5)])
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and shown(answer) == ["a", "a", "b"]
    told = found.whole["metadata"]["distprof"]["ranks"]["0"]
    assert told["kineto"] == {"first": {"a": [1, {}]}, "last": "x ] }", "more": None}
    assert told["num_events_without_time"] == 0
    plain = merge(tmp_path, f"[{event}, {event}")
    assert len(plain.of(0)) == 2 and not plain.found.counts[0].losses.is_cut


def test_characters_that_viewers_refuse_are_written_as_they_read_them(tmp_path):
    """Control characters end the import, escaped surrogates are an error, half ones are no text at all."""
    names = (b"tab\there", b"line\nhere", rb"smile \ud83d\ude00", rb"half \ud83d", rb"c:\path", b"nul\x00")
    events = [rb'{"ph":"X","pid":7,"tid":7,"dur":5,"ts":%d,"name":"%s"}' % (10 * number, name)
              for number, name in enumerate(names)]
    text = b'{"about":"a\x01b","traceEvents":[' + b",".join(events) + b"]}"
    found = merge(tmp_path, text, [slice_of("b", 10, 5)])
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and answer.import_errors == []
    assert [event["name"] for event in found.of(0)] == [
        "tab\there", "line\nhere", "smile \U0001f600", "half \ufffd", "c:\\path", "nul\x00"]
    assert len(shown(answer)) == 7 and "smile \U0001f600" in shown(answer)
    assert found.found.total("num_repaired") == 6


def test_integers_beyond_64_bits_keep_their_digits(tmp_path):
    """Perfetto makes garbage of them, browsers round what is beyond 2^53."""
    args = {"Comms Id": 18446744073709551557, "Addr": 2**63 - 1, "minus": -(2**63) - 1}
    found = merge(tmp_path, [slice_of("a", 10, 5, args=args)])
    assert [event["args"] for event in found.of(0)] == [
        {"Comms Id": "18446744073709551557", "Addr": 2**63 - 1, "minus": "-9223372036854775809"}]
    answer = ask(found.path, ERRORS, ARGS)
    values = {row["key"]: row["value"] for row in answer.results[1]}
    assert answer.results[0] == [] and values["args.Comms Id"] == "18446744073709551557"
    assert values["args.Addr"] == str(2**63 - 1)


def test_bytes_that_are_no_text_and_quotes_in_names_cost_nothing(tmp_path):
    """Other encodings, and quotes that old versions of Kineto did not escape."""
    event = b'{"ph":"X","pid":7,"tid":7,"dur":5,"ts":%d,"name":"%s"}'
    texts = [event % (10, b"a"), event % (20, b"caf\xe9"), event % (30, b'call("x")'), event % (40, "中文".encode()),
             event % (50, b"z")]
    found = merge(tmp_path, b'{"traceEvents":[' + b",\n".join(texts) + b"]}")
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and [row["slice"] for row in answer.results[1]] == [
        "a", "caf\ufffd", 'call("x")', "中文", "z"]
    losses = found.found.counts[0].losses
    assert (losses.damaged_events, losses.repaired_events, losses.lost_bytes) == (0, 2, 0)
    with pytest.raises(ValueError, match=r"codec|delimiter"):
        usual_merge(files(tmp_path / "run"), tmp_path / "usual.json")


def test_numbers_with_zeros_before_them_are_read(tmp_path):
    """Perfetto and strict parsers refuse 01, +1, .5 and 5."""
    text = ('[{"ph":"X","name":"a","pid":007,"tid":+7,"ts":010.5,"dur":.5,"args":{"v":01}},'
            '{"ph":"X","name":"b","pid":7,"tid":7,"ts":20.,"dur":5.e0}]')
    found = merge(tmp_path, text)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == []
    assert [(row["slice"], row["ts"], row["dur"]) for row in answer.results[1]] == [
        ("a", 500, 500), ("b", 10_000, 5000)]
    assert [event["args"]["v"] for event in found.of(0) if "args" in event] == [1]


def test_counters_of_ranks_stay_apart(tmp_path):
    """A counter is known by process, name and key; its values are numbers, or text that is one."""
    def counting(rank: int) -> list[dict]:
        return [slice_of("a", 10, 5), *({"ph": "C", "name": "bytes", "pid": 7, "ts": ts, "id": id_, "args": args}
                for ts, id_, args in ((12, 1, {"used": rank}), (13, 2, {"used": rank + 10}), (14, "x", {"used": 5}),
                                      (15, None, {"": "7.5"})))]

    found = merge(tmp_path, *map(counting, range(2)))
    answer = ask(found.path, ERRORS, COUNTERS)
    assert answer.results[0] == []
    values: dict[int, list[float]] = {0: [], 1: []}
    for row in answer.results[1]:
        values[rank_of(row["process"])].append(row["value"])
    assert sorted(values[0]) == [0, 5, 7.5, 10] and sorted(values[1]) == [1, 5, 7.5, 11]


def test_marks_of_everything_are_those_of_a_rank(tmp_path):
    """An instant of scope g would be one of all ranks."""
    def marked(rank: int) -> list[dict]:
        return [slice_of("a", 10, 50), *({"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": ts, "s": "g"}
                for phase, name, pid, tid, ts in (("i", f"Iteration Start {rank}", "Traces", "Trace", 12),
                                                  ("I", f"Record Window End {rank}", "", "", 40)))]

    found = merge(tmp_path, *map(marked, range(2)))
    for rank in range(2):
        marks = found.of(rank, "iI")
        assert [mark["s"] for mark in marks] == ["p", "p"] and all(mark["name"].endswith(str(rank)) for mark in marks)
    assert ask(found.path, ERRORS).results[0] == []


def test_text_is_read_once_more_by_every_json_parser(tmp_path):
    """All of the above in one trace: the merged file is strict JSON in UTF-8."""
    text = text_of([slice_of("a", float("nan"), 1), slice_of("b", 5, 1, args={"x": float("inf"), "y": 2**70})])
    found = merge(tmp_path, text, text.replace(b"b", b"\xff"))
    assert json.loads(gzip.decompress(found.path.read_bytes()).decode("utf-8", "strict")) == found.whole


PLAIN = '{"ph": "X", "name": "%s", "ts": %d, "dur": 100, "pid": 1, "tid": %d}'
HIDDEN = """{"ph":"X","ts":%d,"dur":7,"pid":1,"tid":%d,"name":"%s","args":{
 "s": %s
}}"""
MISREAD = '"a\n  }, b",\n "t": 1'


@pytest.mark.parametrize("thread", [1, 7])
def test_damage_in_args_that_only_the_second_pass_sees(tmp_path, thread):
    """The first pass skims args, and may lose other events than the second: what overlaps is looked at again."""
    lines = [PLAIN % ("a", 10, 1), HIDDEN % (200, thread, "raw newline", MISREAD), PLAIN % ("A", 300, 1),
             PLAIN % ("B", 350, 1), HIDDEN % (210, 2, "damaged", "+true"), PLAIN % ("C", 500, 1), PLAIN % ("D", 700, 2)]
    found = merge(tmp_path, '{"traceEvents":[\n' + ",\n".join(lines) + "\n]}")
    answer = ask(found.path, ERRORS, PLACES)
    lost = found.found.counts[0].losses.damaged_events
    assert lost == (1 if is_compiled() else 0), "the plain engine repairs the event"
    assert answer.results[0] == []
    assert shown(answer) == ["A", "B", "C", "D", "a", *([] if lost else ["damaged"]), "raw newline"]
    assert found.found.total("num_side") == 1
    lanes = {row["slice"]: row["thread"] for row in answer.results[1]}
    assert [name for name, lane in lanes.items() if "overlapping" in lane] == ["B"]


def test_a_backslash_at_the_end_of_a_string_ends_it(tmp_path):
    """Perfetto takes the quote behind it for a part of the string, and refuses the whole trace."""
    names = ["ends in \\", "\\", "\\\\", "two \\\\", 'quote \\"', "in \\ the middle", "\\\\\\"]
    events = [slice_of(name, 10 * number, 5, args={"key\\": "value\\", name: 1}) for number, name in enumerate(names)]
    threads = [{"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "thread\\"}},
               {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "program\\"}}]
    found = merge(tmp_path, [slice_of("b", 10, 5)], {"job\\": "C:\\", "traceEvents": [*threads, *events]})
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.import_errors == [] and answer.results[0] == []
    assert len(answer.results[1]) == len(names) + 1  # it shows \\ and \u005c as they are written
    assert [event["name"] for event in found.of(1, "X")] == names
    assert found.found.total("num_repaired") == len(names) + 2
    assert usual_fails(tmp_path / "run", tmp_path / "usual.json") != ""


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_event_a_line_is_a_list(tmp_path, size, end):
    events = [slice_of(f"e{number}", 10 * number, 5, args={"text": "}, {"}) for number in range(4)]
    (tmp_path / "rank0.json").write_bytes(end.join([*map(json.dumps, events), ""]).encode())
    reader = ChunkReader(TraceFile(path=tmp_path / "rank0.json"), chunk_bytes=size)
    assert json.loads(b"".join(reader)) == events
    found = json.loads(b"".join(_as_list(bytes([byte]) for byte in (tmp_path / "rank0.json").read_bytes())))
    assert found == events


def test_a_whole_trace_in_two_lines_is_no_list(tmp_path):
    text = json.dumps({"schemaVersion": 1, "traceEvents": [slice_of("a", 1, 5), slice_of("b", 10, 5)]})
    text = text.replace("}, {", "},\n{")
    (tmp_path / "rank0.json").write_text(text)
    assert b"".join(ChunkReader(TraceFile(path=tmp_path / "rank0.json"))) == text.encode()
