"""Findings that keep their ids while they are found again and again, and do not vanish once they were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from distprof.contract.watch_state import WatchFinding

SETTLED_NS = 60e9
"""After an onset that long ago it is not moved any more: rows from that time are joined later on."""
GONE_NS = 30e9
"""What was not found again for so long is over."""
LATE_KINDS = frozenset({"slow_rank", "slow_host", "intermittent"})


class Register:
    """All findings so far, in the order in which they were made."""

    def __init__(self) -> None:
        """None."""
        self.findings: list[WatchFinding] = []
        self._numbers: Counter[str] = Counter()
        self._seen_ns: dict[str, float] = {}

    def update(self, found: Sequence[WatchFinding], now_ns: float, last_step: int, near_steps: float) -> None:
        """What was found now.

        Args:
            found: With empty ids.
            now_ns: Time of the job by now.
            last_step: That all ranks have ended.
            near_steps: Findings of one kind and rank whose onsets are as near are the same.
        """
        taken: set[str] = set()
        for one in found:
            known = next((old for old in self.findings if old.id not in taken and _same(old, one, near_steps)), None)
            if known is None:
                self._numbers[one.kind] += 1
                one.id = f"{one.kind}-{self._numbers[one.kind]}"
                self.findings.append(one)
            else:
                self._replace(known, one, now_ns)
            taken.add(one.id)
            self._seen_ns[one.id] = now_ns
        for old in [old for old in self.findings if old.id not in taken and old.kind in LATE_KINDS]:
            one = next((one for one in found if one.kind == "intermittent" and one.ranks == old.ranks
                        and _same(old, one, near_steps)), None)
            if one is not None:  # it seemed to be two troubles before enough steps were there
                one.module, one.line, one.window = (
                    one.module or old.module, one.line or old.line, one.window or old.window)
                self.findings.remove(old)
        for place, old in enumerate(self.findings):
            if old.id not in taken and old.until_step is None and now_ns - self._seen_ns[old.id] > GONE_NS:
                self.findings[place] = msgspec.structs.replace(old, until_step=last_step)

    def _replace(self, old: WatchFinding, new: WatchFinding, now_ns: float) -> None:
        new.id = old.id
        from_start = old.before_ns is not None and new.before_ns is None and new.kind in ("slow_rank", "slow_host")
        if (now_ns - old.onset_ns > SETTLED_NS and new.kind == old.kind) or from_start:
            new.onset_step, new.onset_ns = old.onset_step, old.onset_ns
        new.module, new.line, new.window = old.module, old.line, old.window
        if not new.why:
            new.why = old.why
        self.findings[self.findings.index(old)] = new


def _same(old: WatchFinding, new: WatchFinding, near: float) -> bool:
    late = old.kind in LATE_KINDS and new.kind in LATE_KINDS
    if old.kind != new.kind and not late:
        return False
    overlap = not old.ranks or not new.ranks or bool(set(old.ranks) & set(new.ranks))
    if old.kind in ("memory_growth", "pauses", "data_stall", "stopped"):
        return old.phase == new.phase and overlap and (old.kind in ("data_stall", "stopped") or old.why == new.why)
    close = abs(old.onset_step - new.onset_step) <= near
    return overlap and (close or (_goes_on(old, new) and _goes_on(new, old)))


def _goes_on(one: WatchFinding, other: WatchFinding) -> bool:
    """Whether it has not ended when the other begins."""
    return one.until_step is None or one.until_step >= other.onset_step
