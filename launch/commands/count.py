"""`distprof count`, `profile`, `reconcile`: `module:factory` and options come in, the text to print goes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

from distprof.counting.count import count as count_call
from distprof.counting.counts import Counts
from distprof.errors import DistprofError, ModelError
from distprof.launch.factory import Example, Inputs, example, remedy, told
from distprof.peers.reconcile import explain, known_peer
from distprof.profiling.profile import profile as profile_call
from distprof.reporters.page import Page

NOTE = "distprof: raised in "


def count(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, backward: bool, depth: int,
          top: int | None, sort: str, as_json: bool) -> str:
    """Counts one call of the model that a factory makes.

    Raises:
        UsageError: There is no such factory, or inputs are missing.
        ModelError: The model raised; the message says in which module.
    """
    counts = _call(model, shapes, dtypes, device,
                   lambda call: count_call(call.model, *call.args, backward=backward, **call.kwargs))
    return _shown(counts, depth=depth, top=top, sort=sort, as_json=as_json)


def profile(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, backward: bool, depth: int,
            top: int | None, sort: str, warmup: int, runs: int, measured_peak: bool, as_json: bool) -> str:
    """Counts one call and times more; see `count` for errors.

    Raises:
        UsageError: The same, or `runs` or `warmup` is out of range.
    """
    def run(call: Example) -> Counts:
        return profile_call(call.model, *call.args, backward=backward, warmup=warmup, runs=runs,
                            peak="measured" if measured_peak else "published", **call.kwargs)

    return _shown(_call(model, shapes, dtypes, device, run), depth=depth, top=top, sort=sort, as_json=as_json)


def reconcile(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, peer: str,
              as_json: bool) -> str:
    """Explains another counter's total; see `count` for errors.

    Raises:
        UsageError: The same, or the peer is not known.
    """
    known_peer(peer)
    counts = _call(model, shapes, dtypes, device, lambda call: count_call(call.model, *call.args, **call.kwargs))
    found = explain(counts, peer)
    return json.dumps(found.to_dict(), indent=1) if as_json else str(found)


def _shown(counts: Counts, *, depth: int, top: int | None, sort: str, as_json: bool) -> str:
    if as_json:
        return counts.to_json(indent=1)
    page = Page()
    page.report(counts.table(depth=depth, top=top, sort=sort))
    return page.text()


def _call(model: str, shapes: Sequence[str], dtypes: Sequence[str], device: str,
          look: Callable[[Example], Counts]) -> Counts:
    inputs = Inputs.of(shapes, dtypes)
    with redirect_stdout(sys.stderr):  # what the model prints is no part of the answer
        call = example(model, inputs, device=device)
        try:
            return look(call)
        except DistprofError:
            raise
        except Exception as error:
            notes = (note.removeprefix(NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(NOTE))
            where = next(notes, type(call.model).__name__)
            raise ModelError(f"the model raised in {where}: {told(error)}", hint=remedy(error, device)) from error
