"""The edge to the terminal: what is printed can be seen, whatever it is made of and whatever the stream takes."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from distprof.compat.megengine.analysis.tables import boxed, plain, wiki
from distprof.errors import Ended
from distprof.reporters.page import GAP, Page, fitted, middle
from distprof.reporters.tree import TreeRow, TreeView
from distprof.reporters.tree_report import TreeReport
from distprof.terminal import Shown, quoted, say, show, visible, visible_lines
from support.hostile import FILE_NAME, MARKS, NAME, judge, judge_characters
from support.jobs import ROOT

anything = st.text(st.characters(codec=None)) | st.sampled_from([NAME, FILE_NAME])
file_names = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name).map(os.fsdecode)
CHARACTERS = [chr(number) for part in ((0, 0x3400), (0xD700, 0xE100), (0xFA00, 0x10400), (0x1F300, 0x1F700),
                                      (0xE0000, 0xE0200)) for number in range(*part)]
"""Where controls, marks and surrogates are, with their neighbours."""


def test_every_character_that_is_seen_stays_and_every_other_is_an_escape():
    for character in CHARACTERS:
        shown = visible(character)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert shown.isascii() and shown[0] == "\\" and ast.literal_eval(f"'{shown}'") == character
        elif unicodedata.category(character) not in ("Cn", "Co"):
            assert shown == character
    assert visible("C:\\new é 漢字") == "C:\\new é 漢字"


@given(anything)
def test_no_text_forges_a_line_or_moves_the_cursor(text):
    assert "\n" not in judge(visible(text).encode())
    assert judge_characters(visible_lines(text).encode()).count("\n") == text.count("\n")


@given(file_names)
def test_a_shell_reads_a_quoted_path_as_it_was(path):
    text = quoted(path)
    assert judge(text.encode())
    read = subprocess.run(["bash", "-c", f"printf %s {text}"], capture_output=True, check=True)
    assert read.stdout == os.fsencode(path)


def test_a_path_that_can_be_seen_is_quoted_as_ever():
    assert [quoted(Path("runs/a-1")), quoted("my run"), quoted("é's")] == ["runs/a-1", "'my run'", "'é'\"'\"'s'"]


def test_only_a_page_may_have_colours(monkeypatch):
    out = io.StringIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(out, "isatty", lambda: True)
    with redirect_stdout(out):
        page = Page()
        page.line(NAME, style="bold red")
        page.marked([(NAME, "green"), (NAME, None)])
        page.table((NAME, "number"), [(NAME, NAME)])
        page.report(TreeReport(rows=[TreeRow(path=NAME, class_name=NAME, marks=(NAME,), values={"bound": NAME})],
                               view=TreeView(), footer=[(NAME, NAME)]))
        text = page.text()
        assert "\x1b[1;31m" in text
        show(text)
        show(f"{text}")
    shown = out.getvalue()
    assert shown.startswith(f"{text}\n") and "\\x1b[1;31m" in shown.removeprefix(text)
    judge(shown.encode(), terminal=True)
    assert not isinstance(text + "", Shown)
    assert Shown.drawn("\x1b[1ma\x1b[0m\x1b[2J\r") == "\x1b[1ma\x1b[0m\\x1b[2J\\r"


def test_a_tree_that_a_library_prints_is_visible_too():
    report = TreeReport(rows=[TreeRow(path=NAME, class_name=NAME, values={})], view=TreeView())
    judge(str(report).encode())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_no_encoding_fails(encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, "strict")
    with redirect_stdout(stream), redirect_stderr(stream):
        show(f"├─ ± 漢字 {NAME}")
        say(f"├─ 漢字 {NAME}", FILE_NAME)
    lines = raw.getvalue().decode(encoding).splitlines()
    assert len(lines) == 4 and lines[2].startswith("distprof: ")  # NAME has a line end, which the result keeps
    assert lines[0].startswith("├─ ± 漢字" if encoding == "utf-8" else "|- +- \\u6f22\\u5b57")


def test_a_message_that_nobody_reads_stops_nothing(tmp_path):
    closed = (tmp_path / "closed").open("w")
    closed.close()
    for stream in (None, closed):
        with redirect_stderr(stream):
            say("hello")


def test_a_result_that_nobody_reads_ends_the_command():
    read, write = os.pipe()
    os.close(read)
    stream = io.TextIOWrapper(io.FileIO(write, "w"), write_through=True)  # without a buffer that is tried again
    with redirect_stdout(stream), pytest.raises(Ended) as ended:
        show("hello")
    stream.detach().close()
    assert ended.value.exit_code == 141


# --- nothing goes past it ---------------------------------------------------------------------------------------------

PAST = {
    "distprof/terminal.py": "the edge",
    "distprof/reporters/page.py": "asks whether standard output is a terminal, and writes to memory",
    "distprof/reporters/tree_report.py": "writes to memory",
    "distprof/compat/deepspeed/profile_text.py": "prints in the user's program what DeepSpeed prints",
    "distprof/compat/deepspeed/profiler.py": "the same",
    "launch/cli.py": "flushes",
    "launch/commands/watch.py": "asks whether standard output is a terminal, and draws the screen of `distprof watch`",
    "launch/demo/demo.py": "a training script, as a user writes one",
    "launch/guarded.py": "hands on what a child printed through the edge",
    "launch/hosts/copy_process.py": "tells its launcher, by a pipe",
    "launch/hosts/hosts_process.py": "takes what the copy process tells, and hands it on through the edge",
    "launch/upload/job_upload.py": "hands its outcome to the launcher, by a pipe",
    "launch/watching/window_causes.py": "takes what a command of ours prints, and prints none of it",
    "launch/watching/readings/activity.py": "takes what py-spy prints, and prints none of it",
    "launch/watching/screen.py": "draws into memory",
    "launch/watching/watch_process.py": "takes what the watcher tells, and hands it on through the edge",
    "launch/watching/watcher.py": "tells its launcher, by a pipe",
    "launch/standard_streams.py": "opens and flushes; the progress bar, whose words are fixed",
    "launch/model_factory.py": "turns what the user's model prints to standard error",
    "merge/execution/formats/drawing.py": "takes what graphviz prints, and prints none of it",
    "distprof/compiled/build.py": "runs while distprof is being installed",
}
"""Files that have to do with the streams, and why they may."""
WAYS = {"print", "stdout", "stderr", "__stdout__", "__stderr__", "echo", "secho", "Console"}


def ways(text: str) -> set[str]:
    """Names by which a file could print, and calls that write to a number."""
    if not re.search(rf"\b({'|'.join(WAYS)})\b|os\.write", text):
        return set()
    tree = ast.parse(text)
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    numbers = {"os.write" for node in ast.walk(tree) if isinstance(node, ast.Call)
               and ast.unparse(node.func) == "os.write" and ast.unparse(node.args[0]) in ("1", "2")}
    return named & WAYS | numbers


@pytest.mark.long
def test_nothing_is_printed_past_the_edge():
    files = [path for top in ("distprof", "merge", "launch") for path in (ROOT / top).rglob("*.py")
             if not path.is_relative_to(ROOT / "distprof/merge") and not path.is_relative_to(ROOT / "distprof/launch")]
    found = {path.relative_to(ROOT).as_posix(): ways(path.read_text()) for path in files}
    assert len(found) > 200
    assert {path: names for path, names in found.items() if names and path not in PAST} == {}
    assert not [path for path in PAST if not found[path]], "no reason is needed any more"


def test_the_judge_finds_what_it_looks_for():
    for text in ("\x1b[2J", "\r", "\t", "\x07", "\x7f", "\x9b", *MARKS, "\u2028", f"a\n{NAME}"):
        with pytest.raises(AssertionError):
            judge(text.encode())
    with pytest.raises(UnicodeDecodeError):
        judge(b"\xff")
    assert judge(b"\x1b[1ma\x1b[0m\n", terminal=True) == "a\n"


@given(names=st.lists(st.text("abc.", min_size=1, max_size=300), min_size=1, max_size=6), width=st.integers(40, 200))
def test_names_are_cut_in_the_middle_to_the_width_and_numbers_never(names, width):
    rows = [[name, "12.34 ms", "100.0 %"] for name in names]
    cut = fitted(("module", "time", "share"), rows, 1, width)
    assert [row[1:] for row in cut] == [row[1:] for row in rows]
    assert max(len(row[0]) for row in cut) + 8 + 7 + 2 * GAP <= width
    for (name, *_), (shown, *_) in zip(rows, cut, strict=True):
        assert shown == name or ("..." in shown and name[:4] == shown[:4] and shown[-1] == name[-1])


@given(name=st.text("abc.模型層\u0301😀", min_size=1, max_size=80), width=st.integers(30, 100))
def test_wide_characters_count_as_their_columns(name, width):
    (shown, number), = fitted(("module", "time"), [[name, "12.34 ms"]], 1, width)
    assert number == "12.34 ms" and cell_len(shown) + GAP + 8 <= width
    assert shown == name or ("..." in shown and cell_len(shown) + GAP + 8 >= width - 2), "two columns may stay empty"


def test_boxes_are_straight_around_wide_characters():
    rows = [["模型層" * 4, "1"], ["layer", "2"]]
    for table in (boxed(["name", "n"], rows), wiki(["name", "n"], rows)):
        assert len({cell_len(line) for line in table.splitlines()}) == 1
    assert len({cell_len(line.rpartition("  ")[0]) for line in plain([*rows, ["b", "3"]]).splitlines()}) == 1


@pytest.mark.long
def test_a_terminal_that_is_too_narrow_gets_the_table_all_the_same():
    assert fitted(("module", "time"), [["x" * 100, "1.00 ms"]], 1, 10) == [["xxxxx...xxxx", "1.00 ms"]]
    assert middle("abcdefghij", 7) == "ab...ij"
