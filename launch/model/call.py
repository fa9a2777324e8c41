"""One call of a model named on the command line, for `count`, `profile` and `reconcile`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

from distprof.counting.count import Counts
from distprof.errors import DistprofError, ModelError
from distprof.launch.model.factory import first_line, hint_for, make_call
from distprof.reporters.page import Page

NOTE = "distprof: raised in "


def call_model(model: str, shapes: Sequence[str], dtypes: Sequence[str], device: str,
               examine: Callable[..., Counts]) -> Counts:
    """Makes the model and returns what `examine` finds in a call of it.

    Args:
        model: MODULE:FACTORY.
        shapes: As for `make_call`.
        dtypes: As for `make_call`.
        device: As for `make_call`.
        examine: Gets the model and the arguments of the call, and calls it.

    Raises:
        UsageError: As for `make_call`.
        ModelError: The same, or the model raised; the message names the module.
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
            raise ModelError(f"the model raised in {where}: {first_line(error)}",
                             hint=hint_for(error, device) or call.hint_for(error)) from error


def tree_text(counts: Counts, *, depth: int, top: int | None, sort: str, as_json: bool) -> str:
    """The tree of modules with totals, or all counts as JSON."""
    if as_json:
        return counts.to_json(indent=1)
    page = Page()
    page.report(counts.table(depth=depth, top=top, sort=sort))
    return page.text()
