"""`python -m distprof.compat.megengine.profiler`, and the twin of the documentation's code as a program."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support import forked
from support.jobs import PATIENCE_S, ROOT, clean_environ

SCRIPT = """
import sys
import torch
torch.ones(4) @ torch.ones(4)
print(sys.argv[1:], __name__)
"""


def launched(folder, *words: str) -> subprocess.CompletedProcess:
    return forked.run([sys.executable, "-m", "distprof.compat.megengine.profiler", *words], cwd=folder, text=True,
                      env=clean_environ() | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=PATIENCE_S,
                      check=False)


@pytest.mark.job
@pytest.mark.parametrize("as_module", [False, True])
def test_a_script_is_profiled(tmp_path, as_module):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = ["-m", "script"] if as_module else ["script.py"]
    done = launched(tmp_path, "-o", "out", "-f", "chrome_timeline.json", "-f", "memory_flow.svg",
                    "--merge_trace_events", "--sample_rate", "2", *script, "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['--lr', '1'] __main__\n"
    kinds = sorted(path.name.split(".", 1)[1] for path in (tmp_path / "out").iterdir())
    assert kinds == ["chrome_timeline.json", "chrome_timeline.json", "memory_flow.svg"]
    merged = json.loads((tmp_path / "out" / "merge.chrome_timeline.json").read_text())
    assert "aten::dot" in {event["name"] for event in merged["traceEvents"]}
    again = launched(tmp_path, "-o", "out", "--clean", "script.py")
    assert again.returncode == 0 and len(list((tmp_path / "out").iterdir())) == 1
    only = launched(tmp_path, "-o", "out", "--merge_trace_events")
    assert only.returncode == 0 and len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.job
def test_how_a_script_ends_is_how_the_launcher_ends(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + "\nsys.exit(7)")
    assert launched(tmp_path, "script.py").returncode == 7
    assert len(list((tmp_path / "profile").iterdir())) == 1
    done = launched(tmp_path)
    assert done.returncode == 2 and "no script given" in done.stderr


@pytest.mark.job
def test_tables_need_no_torch(dump):
    code = ("import sys; from distprof.compat.megengine.profile_analyze import main; code = main(sys.argv[1:]); "
            "assert 'torch' not in sys.modules; sys.exit(code)")
    done = subprocess.run([sys.executable, "-c", code, dump], env=clean_environ(), capture_output=True, text=True,
                          timeout=PATIENCE_S, cwd=ROOT, check=False)
    assert done.returncode == 0 and "fc[4]" in done.stdout, done.stderr


TWIN = """
import sys, torch
from torch import nn
import torch.distributed as dist
import torch.nn.functional as F
from distprof.compat.megengine import profile, Profiler

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@profile()
def train_step(data, label, *, optimizer, model):
    loss = F.cross_entropy(model(data), label)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

for _ in range(3):
    train_step(torch.ones(2, 4), torch.zeros(2, dtype=torch.long), optimizer=optimizer, model=model)
dist.destroy_process_group()
"""


@pytest.mark.job
def test_each_rank_has_a_file(tmp_path):
    from distprof.compat.megengine.profile_analyze import analyze

    (tmp_path / "twin.py").write_text(TWIN)
    done = forked.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                       "twin.py"], cwd=tmp_path, env=clean_environ() | {"PYTHONPATH": str(ROOT)},
                      capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("*.json"))
    assert [path.name for path in files] == [f"profile.rank{rank}.chrome_timeline.json" for rank in range(2)]
    found = json.loads(analyze([*map(str, files), "--json", "-t", "0", "--type", "MatrixMul"]))
    assert found["ranks"] == [0, 1] and {row["rank"] for row in found["device"]} == {0, 1}
