"""The line on the last row of a terminal: whatever others print meanwhile, and wherever they are in their line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.launch.display.job_progress import StatusRow, drawn, has_rows, taken_away
from support.terminal import Screen

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
