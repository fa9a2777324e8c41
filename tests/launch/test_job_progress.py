"""How far a job is, from what its ranks write, on the last row of a terminal, whatever others print there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.launch.job_progress import LastStep, StatusRow, drawn, has_rows, last_steps, progress_line, taken_away
from distprof.recording.plan import StepPlan
from support.terminal import Screen, on_terminal_of_its_own

PLAN = StepPlan.parse("wait=2,count=1,time=3,trace=6,arrivals=20")
DRAWN = re.compile(r"\d+(?: of \d+)? steps? recorded, \w+ pass")


def rank(number: int, step: int, ms: int) -> LastStep:
    return LastStep(rank=number, step=step, name="trace", duration_ns=ms * 1_000_000)


@pytest.mark.parametrize(("steps", "line"), [
    ([rank(0, 0, 10)], "1 of 32 steps recorded, trace pass; step 10.00 ms"),
    ([rank(0, 8, 100), rank(1, 8, 101), rank(2, 8, 109)], "9 of 32 steps recorded, trace pass; step 101.00 ms"),
    ([rank(0, 8, 100), rank(1, 7, 102), rank(2, 8, 130)],
     "9 of 32 steps recorded, trace pass; step 102.00 ms; slowest rank 2, 130.00 ms"),
    ([rank(0, 8, 100), rank(1, 5, 100)],
     "9 of 32 steps recorded, trace pass; step 100.00 ms; slowest rank 1, 3 steps behind"),
    ([rank(0, 40, 100)], "41 steps recorded, trace pass; step 100.00 ms"),
])
def test_one_line_says_how_far_they_are_and_who_is_slow(steps, line):
    assert progress_line(steps, PLAN) == f"distprof: {line}"


def write(run: Path, folder: str, text: str) -> None:
    (run / folder).mkdir()
    (run / folder / "steps.ndjson").write_text(text)


def test_only_whole_lines_of_ranks_that_record_now_count(tmp_path):
    lines = [json.dumps({"step": step, "pass": "time", "duration_ns": step + 1, "samples": 8 ** 900}) + "\n"
             for step in range(4)]
    write(tmp_path, "rank00000.partial", "".join(lines))
    write(tmp_path, "rank00011.partial", "".join(lines)[:-10])
    write(tmp_path, "rank100011.partial", lines[1])
    write(tmp_path, "rank00002.partial", lines[0][:-10])
    write(tmp_path, "rank00003", lines[0])
    (tmp_path / "rank00004.partial").mkdir()
    found = sorted(last_steps(tmp_path), key=lambda one: one.rank)
    assert [(one.rank, one.step, one.name, one.duration_ns) for one in found] == [
        (0, 3, "time", 4), (11, 2, "time", 3), (100_011, 1, "time", 2)]


SCRIPT = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**9):
    seen = torch.tensor([float(Path(sys.argv[1]).exists())])
    dist.all_reduce(seen)
    if seen:
        break
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    sys.stdout.write(f"rank {dist.get_rank()} step {step}\\n")
dist.destroy_process_group()
"""
"""Trains until a file is there."""


def on_terminal(tmp_path: Path, *flags: object, watch: Callable[[str], object] = str) -> tuple[str, Screen, set[str]]:
    """A job that must succeed and prints to a terminal: what it wrote, the screen, and what its last row showed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    code, shown = on_terminal_of_its_own(
        "run", "--no-merge", "--out", tmp_path / "run", *flags, tmp_path / "train.py", tmp_path / "seen", watch=watch)
    assert code == 0, shown
    screen, rows = Screen(), set[str]()
    for character in shown:
        screen.feed(character)
        if character == "8":  # ends what we draw, among others
            rows.add(screen.last_row)
    return shown, screen, rows


@pytest.mark.job
def test_lines_of_the_script_are_whole_while_the_last_row_shows_how_far_it_is(tmp_path):
    seen = tmp_path / "seen"
    _, screen, rows = on_terminal(
        tmp_path, "--nproc-per-node", 2, "--steps", "wait=2,count=0,time=99999,trace=0,arrivals=0",
        watch=lambda shown: seen.touch() if len(DRAWN.findall(shown)) > 1 else None)
    assert any(DRAWN.search(row) and row.startswith("distprof: ") for row in rows), rows
    assert not any(DRAWN.search(line) for line in screen.lines) and screen.screen.margins is None
    lines = screen.lines
    for number in (0, 1):
        steps = [line for line in lines if line.startswith(f"rank {number} step ")]
        assert steps == [f"rank {number} step {step}" for step in range(len(steps))] and len(steps) > 5
    others = "".join(line for line in lines if not re.fullmatch(r"rank \d step \d+", line))
    assert re.fullmatch(r"distprof: recording steps .* to .*distprof: 2 of 2 ranks recorded. Next:"
                        r"    distprof merge .*/run", others), others


@pytest.mark.job
def test_no_progress_leaves_the_terminal_alone(tmp_path):
    shown, _, _ = on_terminal(tmp_path, "--no-progress", "--steps", "wait=0,count=1,time=99999,trace=0,arrivals=0",
                              watch=lambda shown: (tmp_path / "seen").touch() if "step 200" in shown else None)
    assert "\x1b" not in shown, shown


ROWS, COLUMNS = 6, 40
SIZE = os.terminal_size((COLUMNS, ROWS))
OURS = "distprof: a line of ours"
PRINTED = st.one_of(
    st.text("abc xyz", max_size=30).map(lambda text: f"{text}\r\n"),
    st.text("abc", max_size=9),
    st.text("abc", min_size=COLUMNS, max_size=3 * COLUMNS).map(lambda text: f"{text}\r\n"),
    st.integers(0, 30).map(lambda done: f"\r{'#' * done}"),
    st.sampled_from(["\r\n", "\x1b[31m", "\x1b[0m", "\x1b[K", "\r\x1b[2K", "\x1b[A", "\t"]))
"""What scripts print at once: lines, pieces of lines, bars that are drawn over themselves, colours."""


def after(pieces: Sequence[str]) -> Screen:
    screen = Screen(ROWS, COLUMNS)
    for piece in pieces:
        screen.feed(piece)
    return screen


@given(st.lists(st.tuples(PRINTED, st.booleans()), max_size=60))
def test_what_others_print_is_the_same_with_it_and_without(printed):
    plain = after([piece for piece, _ in printed])
    ours = [part for piece, draws in printed for part in (piece, *([drawn(OURS, SIZE)] if draws else ()))]
    with_it = after(ours)
    if printed and printed[-1][1]:
        assert with_it.last_row == OURS
    with_it.feed(taken_away(SIZE, before=SIZE))
    assert with_it.lines == plain.lines
    assert with_it.screen.margins is None
    assert with_it.screen.cursor.x == plain.screen.cursor.x
    assert with_it.screen.cursor.attrs == plain.screen.cursor.attrs


def test_a_line_in_the_last_row_is_kept_when_ours_comes_there():
    screen = after([*(f"{number}\r\n" for number in range(ROWS - 1)), "unfinished", drawn(OURS, SIZE), " line\r\n"])
    assert screen.lines == [*map(str, range(ROWS - 1)), "unfinished line", "", OURS] and screen.last_row == OURS


def test_another_size_leaves_what_is_there_now():
    screen = after([drawn(OURS, os.terminal_size((COLUMNS, ROWS - 1))), "one\r\n"])
    screen.feed(taken_away(SIZE, before=os.terminal_size((COLUMNS, ROWS - 1))))
    assert "one" in screen.lines and screen.screen.margins is None


def test_a_line_that_is_too_long_is_cut():
    screen = after([drawn("x" * 3 * COLUMNS, SIZE)])
    assert screen.last_row == "x" * (COLUMNS - 1)


@pytest.mark.parametrize("environ", [
    {}, {"TERM": "dumb"}, {"TERM": "screen", "STY": "1234.pts-0.host"}, {"TERM": "xterm-color"},
    {"TERM": "xterm-256color", "JPY_PARENT_PID": "7"}, {"TERM": "xterm", "CI": "true"}])
def test_terminals_that_keep_no_row(environ):
    ours, theirs = os.openpty()
    try:
        assert has_rows(theirs, {"TERM": "xterm"}) and not has_rows(theirs, environ)
        assert has_rows(theirs, {"TERM": "tmux-256color"})
        with Path(os.devnull).open() as nothing:
            assert not has_rows(nothing.fileno(), {"TERM": "xterm"})
    finally:
        os.close(ours)
        os.close(theirs)


def test_nothing_is_taken_away_where_nothing_is():
    StatusRow(-1).clear()
