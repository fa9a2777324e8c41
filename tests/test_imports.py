"""What is imported when: the light parts stay light, names are where they were promised."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter

import grimp
import pytest

import distprof
from support.jobs import ROOT, clean_environ
from support.made_up_traces import folder, op


def loaded(code: str, *arguments: object) -> set[str]:
    """Top-level modules after a piece of code ran in a fresh interpreter."""
    text = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nimport json\n" \
           "print('\\n' + json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", text, *map(str, arguments)], capture_output=True, text=True,
                          env=clean_environ(), check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


COMMAND = "from distprof.launch.cli import main; main(sys.argv[1:])"
COMMANDS = """import json
    from contextlib import suppress
    from distprof.launch.cli import main
    for words in json.loads(sys.argv[1]):
        with suppress(SystemExit): main(words)"""


@pytest.mark.long
def test_no_modules_import_each_other():
    """Neither when they are loaded, nor later in functions, nor for types; `graphlib` names a cycle that it finds."""
    graph = grimp.build_graph("distprof", cache_dir=None)
    assert {"distprof.merge.scan.engine", "distprof.launch.cli"} <= graph.modules  # behind links
    root = {"distprof"}  # imports names when they are asked for
    imported = {one: graph.find_modules_directly_imported_by(one) - root for one in graph.modules - root}
    TopologicalSorter(imported).prepare()


def test_importing_distprof_imports_nothing_heavy():
    assert not {"torch", "polars", "pyarrow", "msgspec", "click", "rich"} & loaded("import distprof")


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--help",), ("--version",)])
def test_help_imports_neither_torch_nor_tables(words):
    assert not {"torch", "polars", "pyarrow", "rich"} & loaded(COMMAND, *words)


def test_reading_a_run_that_lies_here_imports_no_torch_and_nothing_that_reads_elsewhere(ddp):
    commands = [[command, *more, ddp] for command in ("stats", "comms", "critical-path") for more in ((), ("--json",))]
    commands += [["stats", "--modules", ddp], ["diff", ddp, ddp], ["report", ddp, "--json"],
                 ["merge", "--force", "--answer", ddp]]
    words = json.dumps([[str(word) for word in one] for one in commands])
    assert not {"torch", "fsspec", "s3fs", "aiohttp", "botocore"} & loaded(COMMANDS, words)


@pytest.mark.long
def test_counting_and_recording_import_nothing_that_reads_tables_or_renders():
    assert not {"polars", "rich"} & loaded("import distprof.counting.count, distprof.recording.recorder")


@pytest.mark.job
def test_merging_a_trace_of_another_program_imports_no_polars(tmp_path):
    (tmp_path / "traces").mkdir()
    traces = folder(tmp_path / "traces", [op("aten::mm", 10, 5)])
    assert "polars" not in loaded(COMMAND, "merge", traces, "--out", tmp_path / "merged")
    assert (tmp_path / "merged" / "trace.json.gz").exists()


def test_the_contract_imports_nothing_of_others():
    names = loaded("import distprof.contract.merged, distprof.errors, distprof.recording.plan")
    assert not {"torch", "polars", "pyarrow", "msgspec"} & names


def test_public_names_are_these():
    assert distprof.__all__ == sorted(distprof.__all__)
    assert dir(distprof) == distprof.__all__
    assert all(getattr(distprof, name) is not None for name in distprof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'recrod'"):
        distprof.recrod  # noqa: B018


def test_version_is_that_of_the_project():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == distprof.__version__


def test_merge_and_launch_are_links_to_the_top_level_folders():
    for name in ("merge", "launch"):
        link = ROOT / "distprof" / name
        assert link.is_symlink() and link.readlink().as_posix() == f"../{name}"
        assert (ROOT / name / "__init__.py").is_file()
