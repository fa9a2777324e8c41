"""What people see of a job: no number is cut, however narrow the terminal and however many the ranks."""

from __future__ import annotations

import re
import time

import pytest

from distprof.launch.watching.screen import late_by, plain_screen, rows_left, sparkline, worst_first
from distprof.merge.text.watch import end_lines
from distprof.terminal import Shown
from support.made_up_states import MS, job_state, rank_state, slow_rank


def rows(text: str) -> list[list[str]]:
    """Of the table, cells by cell."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("──")) + 1
    return [re.split(r"\s{3,}", line.strip()) for line in lines[first:lines.index("", first)]]


def test_a_screen_says_who_is_late_by_how_much_and_where():
    text = plain_screen(job_state(), "runs/a")
    assert text.splitlines()[:2] == [
        "runs/a", "running: 7,000 steps; 4 ranks; 20.00 ms per step (median); watched for 3 min 20 s"]
    assert [row[0] for row in rows(text)] == ["0", "1", "2", "3"]
    assert rows(text)[1][-1] == "+18.00 ms, forward" and len(rows(text)[0]) == len(rows(text)[1]) - 1
    assert re.search(r"^\d\d:\d\d:\d\d  rank 1 slow from step 6,204 on: \+18 ms per step, 68 s lost$", text, re.M)


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
def test_no_number_is_cut_and_what_is_shown_fits(columns):
    ranks = [rank_state(rank, step=1_234_567, device_bytes=40 << 30, step_ns=1e9 / 3,
                        host=f"a-long-name-of-host-{rank}") for rank in range(3)]
    text = plain_screen(job_state(ranks=ranks), "runs/a", columns=columns)
    table = [line for line in text.splitlines() if "333.33 ms" in line]
    assert len(table) == 3 and max(map(len, text.splitlines())) <= columns
    assert all("…" not in line.partition("+")[0] for line in table)


def test_of_a_thousand_ranks_the_worst_are_shown():
    state = job_state(1000, findings=[slow_rank(537)])
    text = plain_screen(state, "runs/a", rows=10)
    assert [row[0] for row in rows(text)[:10]][:2] == ["537", "1"]  # the slow one, then the one that waits for nobody
    assert "and 990 more" in text and "1,000 ranks on 125 hosts" in text
    assert [row[1] for row in rows(text)[:2]] == ["host67", "host0"]


def test_ranks_that_are_behind_come_before_those_that_are_fast():
    state = job_state(ranks=[rank_state(0), rank_state(1), rank_state(2, step=6000)], findings=[])
    assert [one.rank for one in worst_first(state)] == [2, 0, 1]


def test_a_finding_that_ended_makes_no_rank_late():
    state = job_state(findings=[slow_rank(until_step=6500)])
    assert late_by(state, 1) == ""


@pytest.mark.parametrize(("fields", "text"), [
    ({"module": "layers.1.mlp"}, "+18.00 ms, layers.1.mlp"), ({"phase": None}, "+18.00 ms, slow rank"),
    ({"kind": "stopped", "per_step_ns": None, "phase": None}, "stopped"), ({"kind": "memory_growth"}, "")])
def test_late_by_names_the_narrowest_place_that_is_known(fields, text):
    assert late_by(job_state(findings=[slow_rank(**fields)]), 1) == text


def test_unknown_times_are_dashes_and_columns_of_which_nothing_is_known_are_left_out():
    ranks = [rank_state(rank, waiting_ratio=None, step_ns=None, recent_ns=[], data_ns=None) for rank in range(2)]
    text = plain_screen(job_state(ranks=ranks, findings=[]), "runs/a")
    assert not [word for word in ("waiting", "data", "last minute") if word in text]
    assert "no findings so far" in text
    assert [row[2] for row in rows(text)] == ["-", "-"]


def test_findings_that_go_on_come_first_then_the_newest_with_what_the_machine_said():
    now = time.time_ns()
    found = [slow_rank(1, id="a", text="one", onset_ns=now - 10**9, until_step=9), slow_rank(2, id="b", text="two",
             onset_ns=now - 9 * 10**9, why=["GPU 3 of host7 runs at 1,095 of 1,980 MHz: thermal"]),
             slow_rank(3, id="c", text="three", onset_ns=now)]
    text = plain_screen(job_state(findings=found), "runs/a")
    places = [text.index(word) for word in ("three", "two", "GPU 3", "one")]
    assert places == sorted(places)


def test_names_from_outside_are_escaped():
    ranks = [rank_state(rank, host="\x1b[2Jevil" if rank else "b") for rank in range(2)]
    state = job_state(ranks=ranks, findings=[slow_rank(text="a\x1b]0;title\x07b", why=["c\u202ed"])], notes=["\x9b1m"])
    text = plain_screen(state, "runs/\x1b[31m")
    assert text.isprintable() or all(line.isprintable() for line in text.splitlines())
    assert Shown.drawn(text) == text and "\\x1b[2Jevil" in text


def test_the_screen_leaves_room_for_findings():
    assert rows_left(job_state(), 24) == 15
    assert rows_left(job_state(findings=[slow_rank(id=str(n)) for n in range(30)]), 24) == 8
    assert rows_left(job_state(), 5) == 4


@pytest.mark.parametrize(("values", "bars"), [
    ([], "-"), ([20.0], "▁"), ([19.0, 99.0], "▁█"), ([20.0, 20.0, 25.0], "▁▁█"),
    ([20.0] * 9 + [25.0], "▁▁▁▁█"), ([20.0, 22.5, 25.0], "▁▅█")])
def test_sparklines_show_the_longest_of_each_part(values, bars):
    assert sparkline(values, 20.0, 25.0, 5) == bars


def test_noise_is_flat():
    text = plain_screen(job_state(ranks=[rank_state(0, recent_ns=[20 * MS, 20.4 * MS] * 10)]), "runs/a")
    assert "▁" * 20 in text


def test_one_finding_is_on_the_line_of_the_job():
    assert end_lines(job_state(first_watched=0)) == [
        "7,000 steps watched in 3 min 20 s, 20.0 ms per step; "
        "rank 1 slow from step 6,204 on: +18.0 ms per step, 68 s lost; forward"]
    assert end_lines(job_state(num_steps=0)) == []


def test_lines_at_the_end_begin_with_what_cost_most():
    lines = end_lines(job_state(findings=[slow_rank(rank, cost_ns=rank * 1e9) for rank in range(6)]))
    assert lines[0].startswith("6,962 steps watched in 3 min 20 s")
    assert [line.split()[1] for line in lines[1:-1]] == ["5", "4", "3", "2"]
    assert lines[-1] == "  and 2 more; see distprof watch"
