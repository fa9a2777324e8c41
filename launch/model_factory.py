"""Models named as `module:factory` on the command line: imports the factory, creates the model and inputs, calls it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from distprof.counting.count import Counts
from distprof.counting.invocation import why_not_on_meta
from distprof.errors import DistprofError, ModelError, UsageError, in_one_line
from distprof.launch.model_inputs import RETURNS, ModelCall
from distprof.reporters.page import Page

FORM = f"package.module:function or path/to/file.py:function, returning {RETURNS}"


def make_call(spec: str, shapes: Sequence[str], dtypes: Sequence[str], device: str) -> ModelCall:
    """Creates a model and the inputs of one call.

    Args:
        spec: `module:factory`; the current directory is on the path.
        shapes: Like "1,3,224,224", one per input; empty: the factory returns inputs.
        dtypes: Like "float32", one for all inputs or one for each.
        device: meta, cpu or cuda; torch's default device while the factory runs.

    Raises:
        UsageError: The factory does not exist or does not return a model, or inputs are missing or cannot be parsed.
        ModelError: The factory or its module raised.
    """
    inputs = _input_specs(shapes, dtypes)
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device found", hint="--device cpu")
    factory = import_factory(spec)
    found = ModelCall.of(_made(factory, spec, device), spec)
    if inputs:
        place = _device_of(found.model, device)
        found = ModelCall(found.model, tuple(_tensor(shape, dtype, place) for shape, dtype in inputs),
                          from_factory=False)
    found.check()
    return found


def _input_specs(shapes: Sequence[str], dtypes: Sequence[str]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    if len(dtypes) > 1 and len(dtypes) != len(shapes):
        raise UsageError(f"pass --dtype once, or once per --input-shape; found {len(dtypes)} --dtype and {len(shapes)} "
                         "--input-shape")
    types = [_dtype(name) for name in dtypes] or [torch.float32]
    return list(zip(map(_shape, shapes), types * len(shapes) if len(types) == 1 else types, strict=True))


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a random tensor; zeros for integers, because 0 is a valid index of every embedding."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, device=device).to(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def import_factory(spec: str) -> Callable[[], Any]:
    """Imports a factory.

    Raises:
        UsageError: The module or name does not exist, or the object is not callable.
        ModelError: The module raised while it was imported.
    """
    place, separator, name = spec.rpartition(":")
    if not (separator and place and name):
        raise UsageError(f"{spec!r} is not module:factory", hint=FORM)
    found: Any = _module(place)
    for part in name.split("."):
        found = _attribute(found, part, spec)
    if not callable(found):
        raise UsageError(f"{spec} is a {type(found).__name__}, not a class or function", hint=FORM)
    return found if not isinstance(found, nn.Module) else lambda: found


def _attribute(holder: object, part: str, spec: str) -> Any:
    """Returns an attribute of a module or class; some are created only on access, which may fail."""
    place, _, name = spec.rpartition(":")
    try:
        return getattr(holder, part)
    except AttributeError as error:
        near = difflib.get_close_matches(part, dir(holder), n=1)
        raise UsageError(f"{place} has no {name}",
                         hint=f"did you mean {place}:{near[0]}?" if near else FORM) from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{spec} cannot be imported: {in_one_line(error)}") from error


def _module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(f"no module named {place}",
                             hint=f"distprof looked in {here}; for a file, write path/to/file.py:function") from error
        raise ModelError(f"{place} cannot be imported: {in_one_line(error)}") from error
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        hint = "put the script's code under `if __name__ == '__main__':`" if isinstance(error, SystemExit) else None
        raise ModelError(f"{place} cannot be imported: {in_one_line(error)}", hint=hint) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no Python file at {path}")
    folder = str(path.resolve().parent)  # lets the file import its neighbours, as if it were run
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"distprof_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _made(factory: Callable[[], Any], spec: str, device: str) -> Any:
    _check_no_arguments(factory, spec)
    try:
        with torch.device(device) if device != "cpu" else nullcontext():
            return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{spec} raised {in_one_line(error)}", hint=hint_for(error, device)) from error


def _check_no_arguments(factory: Callable[[], Any], spec: str) -> None:
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise UsageError(f"{spec} must be callable without arguments: {error}",
                         hint="write a function that calls it with its arguments") from error
    except ValueError:  # some callables written in C have no signature
        pass


def _device_of(model: nn.Module, device: str) -> torch.device:
    tensor = next(model.parameters(), next(model.buffers(), None))
    return torch.device(device) if tensor is None else tensor.device


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.replace("x", ",").strip("()[] ").split(",")
    if not all(size.strip().isdecimal() for size in sizes):
        raise UsageError(f"--input-shape takes a shape like 1,3,224,224, not {text!r}")
    return tuple(map(int, sizes))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"--dtype takes a torch dtype like float32 or int64, not {name!r}")
    return found


def hint_for(error: BaseException, device: str) -> str | None:
    """Returns a hint for errors with a known cause, else None."""
    message = str(error)
    if device == "meta" and (reason := why_not_on_meta(error)) is not None:
        return f"{reason.cause}: " + ("--device cpu" if reason.cpu_can else "create the model in that precision")
    return "for index inputs: --dtype int64" if "Long" in message and "indices" in message else None


NOTE = "distprof: raised in "


def call_model(model: str, shapes: Sequence[str], dtypes: Sequence[str], device: str,
               examine: Callable[..., Counts]) -> Counts:
    """Creates the model and returns what `examine` finds in a call of it.

    Args:
        model: MODULE:FACTORY.
        shapes: As for `make_call`.
        dtypes: As for `make_call`.
        device: As for `make_call`.
        examine: Gets the model and the arguments of the call, and calls it.

    Raises:
        UsageError: As for `make_call`.
        ModelError: As for `make_call`, or the model raised; the message names the module.
    """
    with redirect_stdout(sys.stderr):  # what the model prints is not part of the result
        call = make_call(model, shapes, dtypes, device)
        try:
            return examine(call.model, *call.args, **call.kwargs)
        except DistprofError:
            raise
        except Exception as error:
            notes = (note.removeprefix(NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(NOTE))
            where = next(notes, type(call.model).__name__)
            raise ModelError(f"the model raised in {where}: {in_one_line(error)}",
                             hint=hint_for(error, device) or call.hint_for(error)) from error


def tree_text(counts: Counts, *, depth: int, top: int | None, sort: str, as_json: bool) -> str:
    """Returns the tree of modules with totals as text, or all counts as JSON."""
    if as_json:
        return counts.to_json(indent=1)
    page = Page()
    page.report(counts.table(depth=depth, top=top, sort=sort))
    return page.text()
