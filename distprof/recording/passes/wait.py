"""The wait pass: nothing is on while the script warms up."""

from __future__ import annotations

from distprof.contract.passes import WAIT
from distprof.recording.passes.protocol import Pass


class WaitSteps(Pass):
    """Steps that are only numbered."""

    name = WAIT
