"""Tables that are not what a rank writes, though their checksum is right: each is named and left out, others are whole.

Truth is the same run with that table cut: what nobody can read.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distprof.contract.parquet import schema_of
from distprof.contract.parquet_footer import add_checksum
from distprof.contract.tables import COLLECTIVES, EVENTS, STEPS
from distprof.merge.run import evidence
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from support import forked
from support.bad_cells import TABLES, apart, rewrite, spoil, write_cell
from support.jobs import PATIENCE_S, clean_environ
from support.reading import reading_commands

IN_TURN = Path(__file__).parents[2] / "support" / "commands_in_turn.py"
CASES = int(os.environ.get("DISTPROF_BAD_CELLS", "1000"))
AT_ONCE = 4
"""Tables that are spoiled together: each of them is to be named, or believed."""
EXTREMES = (2**63 - 1, -2**63)
CELLS = [
    *(("steps", column, value) for column in ("step", "start_ns", "duration_ns") for value in EXTREMES),
    *(("collectives", column, value) for column in ("step", "enqueue_ns", "group_size") for value in EXTREMES),
    *(("modules", "params", value) for value in EXTREMES), *(("events", "start_ns", value) for value in EXTREMES),
    *((table, "rank", value) for table in ("steps", "collectives", "modules", "ops", "events", "parameters")
      for value in (0, 2**40)),
    ("steps", "step", None), ("steps", "pass", None), ("steps", "pass", "x"), ("collectives", "op", None),
    ("collectives", "group_ranks", "0-99999999999"), ("collectives", "group_ranks", "0-3 by 0"),
    ("collectives", "phase", "x"), ("collectives", "size_bytes", -1), ("ops", "counted", None), ("ops", "flops", -1.0),
    ("ops", "macs", float("nan")), ("modules", "module_path", None), ("modules", "fwd_time_ns", float("inf")),
    ("modules", "mp_size", 7), ("events", "name", None), ("parameters", "params", -1)]


@pytest.fixture
def run(everything, tmp_path) -> Path:
    """A copy of a run with every pass that a test may break."""
    return Path(shutil.copytree(everything, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))


def in_turn(commands: Sequence[Sequence[object]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each, from one process, which must not be ended by them."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = forked.run([sys.executable, IN_TURN], input=words, capture_output=True, text=True, timeout=PATIENCE_S,
                      env=clean_environ())
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout)]


def told(run: Path) -> list[dict]:
    """What merging, and asking for totals and communication, says: without what is wrong."""
    merged, *found = in_turn([("merge", "--force", run), ("stats", "--json", run), ("comms", "--json", run),
                              ("ops", "--json", run)])
    assert all(code == 0 for code, *_ in (merged, *found)), found
    documents = [json.loads(out) for _, out, _ in found]
    for one in documents:
        one.pop("problems", None)
    return documents


@pytest.mark.parametrize(("table", "column", "value"), CELLS)
def test_a_value_that_cannot_be_costs_its_table(run, table, column, value):
    path = run / "rank00001" / f"{table}.parquet"
    write_cell(path, column, value, row=-1)
    found = read_table(open_run(run), TABLES[path.name])
    assert [(one.rank, one.file) for one in found.problems] == [(1, path.name)] and list(found.ranks) == [0]
    assert len(found.rows) == pq.read_metadata(run / "rank00000" / path.name).num_rows
    assert column in found.problems[0].detail or "of rank" in found.problems[0].detail


@pytest.mark.parametrize("table", ["steps", "collectives"])
def test_a_table_of_another_rank_is_left_out_like_one_that_is_cut(run, table):
    path = run / "rank00001" / f"{table}.parquet"
    shutil.copy(run / "rank00000" / path.name, path)
    said = told(run)
    path.write_bytes(path.read_bytes()[:100])
    assert said == told(run)


def test_a_rank_with_a_bad_table_does_not_cost_what_others_show_of_the_mesh(run):
    shutil.copy(run / "rank00000" / "collectives.parquet", run / "rank00001" / "collectives.parquet")
    ranks = open_run(run).ranks
    found = evidence._read(ranks, COLLECTIVES, ("op", "step"), pl.col("step") >= 0)
    assert len(found) == pq.read_metadata(run / "rank00000" / "collectives.parquet").num_rows > 0


def bomb(path: Path, table: dict[str, list], copies: int) -> None:
    rows = pa.table(table, schema=schema_of(STEPS if path.name == STEPS.file else EVENTS, {}))
    with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(copies):
            writer.write_table(rows)
    with path.open("r+b") as file:
        add_checksum(file)


def test_a_few_bytes_that_become_many_rows_or_bytes_are_not_read(run):
    steps = pq.read_table(run / "rank00001" / "steps.parquet").slice(0, 1).to_pydict()
    bomb(run / "rank00001" / "steps.parquet", {name: values * 400_000 for name, values in steps.items()}, 5)
    events = pq.read_table(run / "rank00001" / "events.parquet").slice(0, 1).to_pydict()
    names = [f"{number} {'x' * 1_000_000}" for number in range(20)]
    bomb(run / "rank00001" / "events.parquet",
         {name: names if name == "name" else values * 20 for name, values in events.items()}, 10)
    (code, out, _), = in_turn([("merge", run)])
    assert code == 0 and "steps.parquet cannot be read: it claims 2000000 rows in " in out
    assert "events.parquet cannot be read: it claims that " in out and " expand to " in out


def test_without_a_table_of_steps_commands_go_by_collectives(run):
    for rank in range(2):
        write_cell(run / f"rank{rank:05d}" / "steps.parquet", "end_ns", 2**40, None)
    for code, out, err in in_turn([(*words, run) for words in (("comms",), ("findings",), ("report",), ("stats",))]):
        assert code == 0 and "unexpected" not in err and out


def check(run: Path, whole: Path, out: Path, *seeds: int) -> None:
    """Any value in any cell of a table or several: every command ends well, and names the table or believes it."""
    paths, what = zip(*(spoil(run, random.Random(seed)) for seed in seeds), strict=True)
    assert len(set(paths)) == len(seeds), "or one hides the other"
    commands = reading_commands(run, whole, out)
    for words, (code, said, err) in zip(commands, in_turn(commands), strict=True):
        assert "unexpected" not in err and "panicked" not in err, (seeds, what, words, said, err)
        # of several tables nothing may be left that a command could go by
        assert code == 0 or (len(seeds) > 1 and err.startswith("distprof: no ")), (seeds, what, words, said, err)
    for path in paths:
        shutil.copy(whole / path.parent.name / path.name, path)


def test_any_value_in_any_cell_ends_no_command(run, everything, tmp_path):
    check(run, everything, tmp_path, 0, 1, 2)


@pytest.mark.stress
@pytest.mark.parametrize("part", range(20))
def test_any_value_in_any_cell_ends_no_command_ever(run, everything, tmp_path, part):
    for seeds in apart(run, range(CASES * part // 20, CASES * (part + 1) // 20), AT_ONCE):
        check(run, everything, tmp_path, *seeds)


def test_tables_as_they_are_written_are_read(run):
    for path in run.glob("rank*/*.parquet"):
        rewrite(path, pq.read_table(path).to_pydict())
    (code, out, _), = in_turn([("merge", run)])
    assert code == 0 and "cannot be read" not in out
