"""`distprof count module:factory`: what a user types, and what a user mistypes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import distprof as library
from distprof.counting.invocation import has_grouped_product_on_cpu
from distprof.launch.cli import main
from support import forked
from support.jobs import EXAMPLES, clean_environ, distprof
from support.operators import meta_takes_grouped_floats
from support.zoo import torchvision_model

MODELS = '''
import torch
from torch import nn

print("made by models_here.py")
NUMBER = 3


class Two(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x, scale=None):
        print("called")
        return self.inner(x) if scale is None else self.inner(x) * scale


def tensor(): return Two(), torch.ones(2, 4)
def arguments(): return Two(), (torch.ones(2, 4), torch.ones(4))
def names(): return Two(), {"x": torch.ones(2, 4), "scale": torch.ones(4)}
def both(): return Two(), (torch.ones(2, 4),), {"scale": torch.ones(4)}
def one_and_names(): return Two(), torch.ones(2, 4), {"scale": torch.ones(4)}
def too_much(): return Two(), torch.ones(2, 4), {}, 3
def wrong_width(): return Two(), torch.ones(2, 5)
def needs(width): return Two(width)
def broken(): raise ValueError("no weights here\\nand a second line")
def nothing(): return None
def looks(): return Two(int(torch.ones(4).sum()))
ready = Two()


class Lazy(nn.Module):
    """The second layer is never called."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LazyLinear(4), nn.LazyLinear(5)

    def forward(self, x): return self.first(x)


class Many(Two):
    def forward(self, x=None, scale=None, **more): return self.inner(x) * scale.sum() + more["bias"]


class Positional(Two):
    def forward(self, *inputs): return self.inner(inputs[0])


class Reads(Two):
    def forward(self, x): return self.inner(x) if x.sum().item() > 0 else x


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 8, 16))

    def forward(self, x):
        return torch._grouped_mm(x, self.weight, offs=torch.tensor([2, 4, 6], dtype=torch.int32, device=x.device))


class WithoutForward(nn.Module): pass


def lazy(): return Lazy(), torch.ones(2, 3)
def reads(): return Reads(), torch.ones(2, 4)
def experts(): return Experts(), torch.ones(6, 8)
def without_forward(): return WithoutForward(), torch.ones(2)


def __getattr__(name):
    if name == "needs_more":
        raise ImportError("needs a package that is missing")
    raise AttributeError(name)
'''


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "models_here.py").write_text(MODELS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "nets.py").write_text("from models_here import Two\n")
    (tmp_path / "lacks.py").write_text("import no_such_package\n")
    (tmp_path / "script.py").write_text("import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n")
    (tmp_path / "syntax.py").write_text("def (:\n")
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch, capfd) -> Callable[..., subprocess.CompletedProcess]:
    """The command in this process, in a folder, as if nothing of it had been imported before."""
    def run(*arguments: object, command: str = "count") -> subprocess.CompletedProcess:
        before = set(sys.modules)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "path", sys.path[:])
            with pytest.raises(SystemExit) as done:
                main([command, *map(str, arguments)])
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("models_here", "package", "lacks", "script", "syntax", "distprof_model_zoo"):
                del sys.modules[name]
        return subprocess.CompletedProcess(arguments, done.value.code, *capfd.readouterr())

    return run


def counted(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.job
def test_the_command_counts_what_the_function_counts(run):
    sys.path.insert(0, str(EXAMPLES))
    try:
        from train_ddp import Transformer
    finally:
        sys.path.remove(str(EXAMPLES))
    model = (f"{EXAMPLES}/train_ddp.py:Transformer", "--input-shape", "2,16", "--dtype", "int64", "--backward")
    counts = library.count(Transformer(), torch.zeros(2, 16, dtype=torch.long), backward=True)
    on_cpu = distprof("count", *model, "--device", "cpu")
    assert on_cpu.stdout.strip() == counts.table().text().strip()
    assert counted(run(*model, "--device", "cpu", "--json")) == json.loads(counts.to_json())
    on_meta = counted(run(*model, "--json"))
    assert on_meta["macs"]["forward"] == counts.total("macs", "forward") > 0
    assert on_meta["params"] == counts.to_dict()["params"]


@pytest.mark.parametrize("factory", ["tensor", "arguments", "names", "both", "one_and_names", "ready"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_factory_returns_a_model_with_or_without_inputs(run, folder, factory, device):
    shape = ("--input-shape", "2,4") if factory == "ready" else ()
    for place in ("models_here", "models_here.py", folder / "models_here.py"):
        found = counted(run(f"{place}:{factory}", "--json", "--device", device, *shape))
        assert found["macs"]["all"] == 2 * 4 * 4, place
        assert found["modules"][0]["input_shapes"][0] == [2, 4]


@pytest.mark.parametrize("command", ["count", "profile", "reconcile"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_lazy_layers_are_counted_after_their_first_call_and_those_never_called_hold_nothing(run, command, device):
    if (command, device) == ("profile", "meta"):
        return  # it times, which takes storage
    fast = ("--runs", 1, "--warmup", 0) if command == "profile" else ()
    done = run("models_here:lazy", "--device", device, "--json", *fast, command=command)
    found = counted(done)
    if command == "reconcile":
        assert (found["ours"], found["theirs"]) == (2 * 2 * 3 * 4, 2 * 2 * 3 * 4)
    else:
        assert found["macs"]["all"] == 2 * 3 * 4 and found["params"]["params"] == 3 * 4 + 4
        assert [module["calls"] for module in found["modules"]] == [1, 1, 0]


@pytest.mark.parametrize("model", ["Many", "Two"])
def test_a_model_that_takes_more_than_tensors_by_position_names_what_is_left(run, model):
    line = run(f"models_here:{model}", *([] if model == "Two" else ["--input-shape", "2,4"])).stderr
    assert "or write a factory that returns (model, inputs) or (model, args, kwargs)" in line
    assert ("Many.forward also takes scale, **more" in line) == (model == "Many")


def test_help_says_what_a_factory_may_return(run):
    text = " ".join(run("--help").stdout.split())
    assert "It returns a model, (model, inputs) or (model, args, kwargs)" in text


def test_shapes_on_the_command_line_replace_those_of_the_factory(run):
    found = counted(run("models_here:arguments", "--json", "--input-shape", "3x4", "--input-shape", "4",
                        "--device", "cpu", "--dtype", "float32", "--dtype", "float64"))
    assert found["modules"][0]["input_shapes"] == [[3, 4], [4]]
    assert found["macs"]["all"] == 48 and "float32" in {op["dtype"] for op in found["ops"]}


def test_modules_in_packages_beside_here_are_found(run):
    assert counted(run("package.nets:Two", "--json", "--input-shape", "2,4"))["macs"]["all"] == 32


def test_what_the_model_prints_is_no_part_of_the_answer(run):
    done = run("models_here:tensor", "--json")
    assert counted(done)["macs"]["all"] == 32
    assert "made by models_here.py" in done.stderr and "called" in done.stderr


MISTAKES = {
    "models_here": (2, "'models_here' is not module:factory"),
    "models_here:Twoo": (2, "did you mean models_here:Two?"),
    "zooo:Two": (2, "no module named zooo"),
    "package.nest:Two": (2, "no module named package.nest"),
    "nowhere.py:Two": (2, "no Python file at nowhere.py"),
    "models_here:NUMBER": (2, "models_here:NUMBER is a int, not a class or function"),
    "models_here:needs": (2, "missing a required argument: 'width'"),
    "models_here:nothing": (2, "must return a model, (model, inputs) or (model, args, kwargs), not NoneType"),
    "models_here:too_much": (2, "not (Two, Tensor, dict, int)"),
    "models_here:needs_more": (1, "ImportError: needs a package that is missing"),
    "models_here:Many": (
        1, "Many.forward also takes x, scale, **more; or write a factory that returns (model, inputs)"),
    "models_here:Positional": (
        1, "Positional.forward also takes *inputs; or write a factory that returns (model, inputs)"),
    "models_here:reads": (1, "the model reads tensor values, which do not exist on the meta device: --device cpu"),
    "models_here:experts": (1, "grouped matrix product does not support float32 on the meta device: " + (
        "--device cpu" if has_grouped_product_on_cpu() else "create the model in that precision")),
    "models_here:without_forward": (1, 'is missing the required "forward" function\n'),
    "models_here:ready": (2, "Two.forward(x, scale=None): missing a required argument: 'x'"),
    "models_here:broken": (1, "models_here:broken raised ValueError: no weights here"),
    "models_here:looks": (1, "--device cpu"),
    "models_here:wrong_width": (1, "the model raised in inner (Linear): RuntimeError: "),
    "lacks:build": (1, "lacks cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
    "script:build": (1, "if __name__ == '__main__':"),
    "syntax.py:build": (1, "SyntaxError"),
}


@pytest.mark.parametrize("spec", MISTAKES)
def test_a_mistake_is_one_line(run, spec):
    if spec == "models_here:experts" and meta_takes_grouped_floats():
        pytest.skip("in this torch grouped products run on meta in any precision")
    code, words = MISTAKES[spec]
    done = run(spec)
    ours = [line for line in done.stderr.splitlines() if line.startswith("distprof: ")]
    assert done.returncode == code and len(ours) == 1 and words in f"{ours[0]}\n", done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize(("flags", "words"), [
    (("--input-shape", "1,a"), "takes a shape like 1,3,224,224, not"), (("--input-shape", ""), "takes a shape like"),
    (("--input-shape", "2,4", "--dtype", "flaot32"), "not 'flaot32'"),
    (("--dtype", "float32", "--dtype", "int64"), "found 2 --dtype and 0 --input-shape"),
    (("--sort", "time"), "'time' is not one of"),
    (("--input-shape", "2,4", "--dtype", "int64", "--device", "cpu"), "the model raised in inner (Linear)"),
])
def test_a_mistyped_flag_is_one_line(run, flags, words):
    done = run("models_here:Two", *flags)
    assert done.returncode in (1, 2) and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.job
def test_debug_shows_where_the_model_raised(folder):
    done = distprof("--debug", "count", "models_here:broken", cwd=folder)
    assert done.returncode == 1 and 'raise ValueError("no weights here' in done.stderr


def test_depth_top_and_sort_are_those_of_the_table(run):
    model = (f"{EXAMPLES}/train_ddp.py:Transformer", "--input-shape", "2,16", "--dtype", "int64")
    text = run(*model, "--depth", 1, "--sort", "macs", "--top", 3).stdout
    assert "3 of 46 modules: depth 1 of 4, top 3 by macs" in text
    assert [line.split()[1] for line in text.splitlines()[3:5]] == ["layers", "head"]


@pytest.mark.job
@pytest.mark.parametrize(("environ", "coloured"), [
    ({}, True), pytest.param({"NO_COLOR": "1"}, False, marks=pytest.mark.stress)])
def test_a_terminal_gets_its_width_and_colours_unless_it_refuses_them(environ, coloured):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 72, 0, 0))
    command = [sys.executable, "-m", "distprof", "count", f"{EXAMPLES}/train_ddp.py:Transformer", "--input-shape",
               "2,16", "--dtype", "int64"]
    with forked.popen(command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                      env=clean_environ() | {"TERM": "xterm"} | environ) as process:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 4096):
                text += part
        except OSError:  # Linux says so when the other side is closed
            pass
        assert process.wait() == 0
    os.close(ours)
    shown = text.decode()
    assert ("\x1b[" in shown) == coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "").splitlines()
    assert max(map(len, plain)) <= 72 and any("omitted" in line and "input" in line for line in plain)


@pytest.mark.long
def test_a_torchvision_model_is_counted_by_its_name(run):
    torchvision_model("resnet18")  # names the operators a CPU build lacks, or skips
    found = counted(run("torchvision.models:resnet50", "--input-shape", "1,3,224,224", "--json"))
    assert found["macs"]["forward"] == 4_089_184_256 and found["params"]["params"] == 25_557_032
