"""`distprof count`: `module:factory` and options come in, the text to print goes out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from distprof.counted import Counts
from distprof.counted import count as count_call
from distprof.errors import DistprofError, ModelError
from distprof.launch.factory import Example, Inputs, example, remedy, told
from distprof.merge.page import Page

NOTE = "distprof: raised in "


def count(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, backward: bool, depth: int,
          top: int | None, sort: str, as_json: bool) -> str:
    """Counts one call of the model that a factory makes.

    Raises:
        UsageError: There is no such factory, or inputs are missing.
        ModelError: The model raised; the message says in which module.
    """
    inputs = Inputs.of(shapes, dtypes)
    with redirect_stdout(sys.stderr):  # what the model prints is no part of the answer
        counts = _counted(example(model, inputs, device=device), backward=backward, device=device)
    if as_json:
        return counts.to_json(indent=1)
    page = Page()
    page.report(counts.table(depth=depth, top=top, sort=sort))
    return page.text()


def _counted(call: Example, *, backward: bool, device: str) -> Counts:
    try:
        return count_call(call.model, *call.args, backward=backward, **call.kwargs)
    except DistprofError:
        raise
    except Exception as error:
        notes = (note.removeprefix(NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(NOTE))
        where = next(notes, type(call.model).__name__)
        raise ModelError(f"the model raised in {where}: {told(error)}", hint=remedy(error, device)) from error
