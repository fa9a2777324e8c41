"""The sync pass: what blocks the rank, and the line of the script that calls it."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.contract.passes import SYNC
from distprof.contract.tables import WAITS, TableRow
from distprof.recording.blocking.blocking_log import BlockingLog
from distprof.recording.blocking.functions import WaitingFunctions
from distprof.recording.blocking.operators import DdpWaits, WaitingOperators
from distprof.recording.blocking.origins import NodeOwners, is_in_kernel
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder


class SyncSteps(Pass):
    """Steps in which waiting operators and functions are observed."""

    name = SYNC

    def __init__(self, context: PassContext) -> None:
        self._note = context.note
        self._owners = NodeOwners(context.scopes)
        self._log = BlockingLog(self._owners, guard=context.guard, step=context.step, phase=context.phase)
        self._parts = (self._owners, WaitingOperators(self._log), WaitingFunctions(self._log),
                       DdpWaits(self._log, context.guard))
        self._was_on = False

    def start(self) -> None:
        self._was_on = True
        self._log.start()
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        left_out, self._log.num_left_out = self._log.num_left_out, 0
        if left_out:
            self._note(f"the sync pass found too many different waiting lines; calls not recorded: {left_out}")

    def in_operator(self) -> bool:
        """True while one of our kernels runs: it cannot be removed then."""
        return is_in_kernel()

    def restart_step(self) -> None:
        self._log.forget_step()

    def next_step(self) -> None:
        self._log.next_step()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if self._was_on:
            folder.write_rows(WAITS, self._log.rows())
