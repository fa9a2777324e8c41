"""`profile_analyze` on a profile of MegEngine: flags, columns and tables of its documentation."""

from __future__ import annotations

import json

import pytest

from distprof.compat.megengine.profile_analyze import analyze, main
from distprof.errors import DataError, UsageError

TOTAL = 0.01055
HEADER = ["device self time", "cumulative", "operator info", "computation", "FLOPS", "memory", "bandwidth", "in_shapes",
          "out_shapes"]
WIKI = ["#", "time", "ratio", "time bar", "cum-time", "cum-time ratio", "opr name", "opr type", "opr id",
        "computation (MFLO)", "MFLOPS", "MFLOPS-bar", "memory (MB)", "bandwidth (MiB/s)", "bandwidth bar", "in_shapes",
        "out_shapes"]


def table(text: str) -> list[list[list[str]]]:
    """Rows of the first box, the header first: a list of lines for each cell."""
    rows, open_rows = [], []
    for line in text.splitlines():
        if line.startswith("│"):
            open_rows.append([cell.strip() for cell in line.strip("│").split("│")])
        elif open_rows:
            rows.append([[part for part in cell if part] for cell in zip(*open_rows, strict=True)])
            open_rows = []
        if line.startswith("╘"):
            break
    return rows


def names(dump, *flags: str) -> list[str]:
    return [row[2][0] for row in table(analyze([str(dump), *flags]))[1:]]


def test_first_command_of_the_documentation(dump):
    header, *rows = table(analyze([str(dump), "-t", "5"]))
    assert [cell[0] for cell in header] == HEADER
    assert [row[2][0] for row in rows] == ["fc[4]", "conv1[0]", "to_gpu[3]", "conv2[2]", "relu[1]"]
    assert rows[0] == [
        ["#0", "0.0045", "42.7%"], ["0.0045", "42.7%"], ["fc[4]", "MatrixMul", "14"], ["1.50", "GFLO"],
        ["333.33", "GFLOPS"], ["4.00", "MiB"], ["888.89", "MiB/s"], ["{1,64}", "{64,10}"], ["{1,10}"]]
    assert rows[1][:2] == [["#1", "0.003", "28.4%"], ["0.0075", "71.1%"]]
    assert rows[1][7] == ["{1,3,8,8}", "-[192,1,24,3]", "{4,3,3,3}"]
    assert rows[4][3:7] == [["N/A", "FLO"], ["N/A", "FLOPS"], ["2.00", "KiB"], ["39.06", "MiB/s"]]
    assert rows[2][5] == ["600.00", "byte"]


def test_second_command_of_the_documentation(dump):
    header, *rows = table(analyze([str(dump), "-t", "5", "--aggregate-by", "type", "--aggregate", "sum"]))
    assert [cell[0] for cell in header] == HEADER
    assert [row[2] for row in rows] == [["MatrixMul", "1", "N/A"], ["ConvolutionForward", "2", "N/A"],
                                        ["Copy", "1", "N/A"], ["Elemwise", "1", "N/A"]]
    assert rows[1][0][1:] == ["0.004", f"{0.004 / TOTAL * 100:.1f}%"]
    assert rows[1][3:7] == [["15.00", "MFLO"], ["3.75", "GFLOPS"], ["3.00", "MiB"],
                            [f"{(3145728 + 1024) / 0.004 / 1024 ** 2:.2f}", "MiB/s"]]
    assert rows[1][7:] == [["None"], ["None"]]


def test_third_command_of_the_documentation(dump):
    text = analyze([str(dump), "-t", "5", "--order-by", "memory", "--min-time", "1e-4", "--type", "ConvolutionForward"])
    assert [row[2] for row in table(text)[1:]] == [["conv1[0]", "ConvolutionForward", "10"],
                                                   ["conv2[2]", "ConvolutionForward", "12"]]
    assert "shares are of the device time of all 5 operators, 0.0105 s; the 2 chosen take 37.9% of it" in text


def test_three_rows_unless_asked_for_more(dump):
    assert len(names(dump)) == 3
    assert len(names(dump, "--top", "0")) == 5


@pytest.mark.parametrize(("flags", "left"), [
    (["--type", "Copy", "--type", "Elemwise"], ["to_gpu[3]", "relu[1]"]),
    (["--type", "Cop"], []),
    (["--opr-name", "conv"], ["conv1[0]", "conv2[2]"]),
    (["--opr-name", "gpu"], []),
    (["--input-dtype", "Uint8"], ["to_gpu[3]"]),
    (["--input-dtype", "Float16"], ["fc[4]"]),
    (["--input-dtype", "Float32", "--type", "ConvolutionForward", "--opr-name", ".*2"], ["conv2[2]"]),
    (["--min-time", "0.002"], ["fc[4]", "conv1[0]", "to_gpu[3]"]),
    (["--max-time", "0.0011", "--min-time", "0.0001"], ["conv2[2]"]),
    (["--top-end-key", "kern", "--min-time", "0.0003"], ["conv1[0]"]),
    (["--order-by", "computation"], ["fc[4]", "conv2[2]", "conv1[0]", "to_gpu[3]", "relu[1]"]),
    (["--order-by", "+computation"], ["conv1[0]", "conv2[2]", "fc[4]", "relu[1]", "to_gpu[3]"]),
    (["--order-by", "flops"], ["fc[4]", "conv2[2]", "conv1[0]", "to_gpu[3]", "relu[1]"]),
    (["--order-by", "+bandwidth"], ["to_gpu[3]", "conv2[2]", "relu[1]", "fc[4]", "conv1[0]"]),
    (["--order-by", "+opr_id"], ["conv1[0]", "relu[1]", "conv2[2]", "to_gpu[3]", "fc[4]"]),
])
def test_what_is_chosen_and_its_order(dump, flags, left):
    found = names(dump, "-t", "0", *flags)
    assert found[:3] == left[:3] and sorted(found) == sorted(left)


@pytest.mark.parametrize(("how", "time", "computation"), [
    ("max", "0.003", ["9.00", "MFLO"]), ("min", "0.001", ["6.00", "MFLO"]),
    ("sum", "0.004", ["15.00", "MFLO"]), ("mean", "0.002", ["7.50", "MFLO"])])
def test_aggregates(dump, how, time, computation):
    text = analyze([str(dump), "--aggregate", how, "--type", "ConvolutionForward"])
    (row,) = table(text)[1:]
    assert (row[0][1], row[2], row[3]) == (time, ["all", "2", "N/A"], computation)
    assert (f"are the {how} over" in text) == (how != "sum")


def test_unknown_computation_is_said_where_it_is_added_up(dump):
    assert "computation is unknown for 2 of 5 operators" in analyze([str(dump), "--aggregate", "sum"])
    assert "computation is unknown" not in analyze([str(dump)])


def test_summary_is_of_all_operators(dump):
    lines = analyze([str(dump), "--print-only", "summary", "--type", "Copy", "--copy-time"]).splitlines()
    rows = dict(line.split("  ", 1) for line in lines if not line.startswith("-"))
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows == {"total device time": "0.01055", "total host time": "0.001", "copy time": "tot=0.0020 avg=0.0020",
                    "copy wait time": "tot=0.0002 avg=0.0002"}


def test_parts(dump):
    assert "host self time" not in analyze([str(dump)])
    assert "host self time" in analyze([str(dump), "--show-host"])
    assert table(analyze([str(dump), "--print-only", "host"]))[1][:3] == [
        ["#0", "0.0007", "70.0%"], ["0.0007", "70.0%"], ["conv2[2]", "ConvolutionForward", "12"]]
    assert "total device time" not in analyze([str(dump), "--print-only", "device"])


def test_plain_lines_of_operators(dump):
    assert analyze([str(dump), "--dump-only-opr", "--print-only", "device"]).splitlines() == [
        "fc[4] MatrixMul 14", "conv1[0] ConvolutionForward 10", "to_gpu[3] Copy 13"]
    assert analyze([str(dump), "--dump-only-opr", "--print-only", "device", "--aggregate", "sum"]) == "all 5 N/A"


@pytest.mark.parametrize("flag", ["--confluence", "--wiki"])
def test_table_for_a_wiki(dump, flag):
    text = analyze([str(dump), "-t", "0", flag])
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if
             line.startswith("|") and "---" not in line]
    assert lines[0] == ["name", "value"]
    header, *rows = (line for line in lines if len(line) > 2)
    assert header == WIKI
    assert rows[0] == ["0", "0.0045", "42.7%", "#" * 15, "0.0045", "0.42654", "fc[4]", "MatrixMul", "14", "1500.0",
                       "333333.3", "#" * 15, "4.0", "888.9", "#" * 13, "{1,64}, {64,10}", "{1,10}"]
    assert rows[1][3] == "#" * 10 and rows[4][9:12] == ["N/A", "N/A", ""]
    assert rows[1][15] == "{1,3,8,8} -[192,1,24,3], {4,3,3,3}" and "---+" not in text


@pytest.mark.parametrize("flags", [[], ["--wiki"], ["--aggregate", "max"], ["--dump-only-opr"]])
def test_nothing_left_is_a_sentence(dump, flags):
    text = analyze([str(dump), "--type", "ConvolutionForwrad", *flags])
    assert "no operator matches all filters" in text
    assert "did you mean ConvolutionForward?" in text


def test_json(dump):
    found = json.loads(analyze([str(dump), "--json", "--order-by", "flops", "-t", "0"]))
    assert found["kind"] == "profile_analyze" and found["ranks"] == [0]
    assert found["total"] == pytest.approx({"device": TOTAL, "host": 0.001})
    first, *_, last = found["device"]
    assert first["name"] == "fc[4]" and first["flops"] == pytest.approx(1.5e9 / 0.0045)
    assert first["in_shapes"] == [[1, 64], [64, 10]] and first["bandwidth"] == pytest.approx(4194304 / 0.0045)
    assert last["flops"] is None and last["computation"] is None
    assert len(found["host"]) == 3


def test_several_ranks(tmp_path, dump, content):
    content["profiler"]["device"]["14"]["gpu0"]["end"] = 1.0165
    second = tmp_path / "second.json"
    second.write_text(json.dumps(content))
    text = analyze([str(dump), str(second), "-t", "2"])
    assert [row[2] for row in table(text)[1:]] == [["fc[4]", "MatrixMul", "14", "rank 1"],
                                                   ["fc[4]", "MatrixMul", "14", "rank 0"]]
    assert "device time of rank 1  0.01255" in text
    only = json.loads(analyze([str(dump), str(second), "--rank", "1", "--json"]))
    assert only["ranks"] == [1] and only["total"]["device"] == pytest.approx(TOTAL + 0.002)
    by_rank = json.loads(analyze([str(dump), str(second), "--aggregate", "sum", "--aggregate-by", "rank", "--json"]))
    assert [row["type"] for row in by_rank["device"]] == ["rank 1", "rank 0"]


def test_a_time_that_ends_before_it_starts_is_left_out(tmp_path, content):
    content["profiler"]["device"]["14"]["gpu0"]["end"] = 0.5
    path = tmp_path / "profiling.json"
    path.write_text(json.dumps(content))
    text = analyze([str(path)])
    assert "fc[4]" not in text and "1 time skipped: the end is before the start" in text


def test_no_time_at_all(tmp_path, content):
    content["profiler"]["device"] = {}
    path = tmp_path / "profiling.json"
    path.write_text(json.dumps(content))
    assert "no operator has a device time" in analyze([str(path), "--wiki"])


@pytest.mark.parametrize("text", ["", "[]", "{", '{"graph_exec": {}}', '{"graph_exec": 1, "profiler": NaN}',
                                  '{"profiler": ' + "[" * 5000])
def test_a_file_that_is_no_profile(tmp_path, text):
    path = tmp_path / "profiling.json"
    path.write_text(text)
    with pytest.raises(DataError):
        analyze([str(path)])


@pytest.mark.parametrize(("flags", "words"), [
    (["--order-by", "flop"], "did you mean flops"), (["--aggregate-by", "type"], "--aggregate sum"),
    (["--opr-name", "("], "regular expression"), (["--top", "-1"], "0 or more"),
    (["--rank", "3"], "no rank 3; --rank can be 0"),
    (["--aggregate", "median"], "invalid choice"), (["--nothing"], "--nothing")])
def test_wrong_flags(dump, flags, words, capsys):
    with pytest.raises(UsageError, match=words):
        analyze([str(dump), *flags])
    assert main([str(dump), *flags]) == 2
    assert capsys.readouterr().err.startswith("distprof: ")


def test_names_cannot_move_the_cursor(tmp_path, content):
    content["graph_exec"]["operator"]["14"]["name"] = "fc\x1b[2J"
    path = tmp_path / "profiling.json"
    path.write_text(json.dumps(content))
    for flags in ([], ["--wiki"], ["--dump-only-opr"]):
        text = analyze([str(path), *flags])
        assert "\x1b" not in text and "fc\\x1b[2J" in text
