"""Reads a Chrome trace file: scans its events chunk by chunk, and keeps the keys beside them.

Memory is that of a few chunks, however long the file is. Damage is counted and skipped; it raises no exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distprof.errors import DataError
from distprof.merge.scan.damage import AHEAD_BYTES, element_bytes, recovered
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.repair import repaired, valid_utf8
from distprof.merge.scan.scanned_columns import LATEST_NS, NON_ASCII, REPAIR, Status, Text
from distprof.merge.scan.text_window import TextFeed, TextWindow
from distprof.merge.scan.top_level_keys import EVENTS, SECOND, TopLevelKeys, end_of_events, ends_keys

MOST_EVENT_BYTES = 64 << 20
"""A longer event counts as damage: an unclosed bracket would include all that follows."""
MOST_RECOVERED_BYTES = 1 << 20
"""Longer damage is skipped without recovering events from it."""
SHOWN_KEYS = 4


KEYS_BYTES = 1 << 16
"""Bytes after the events in which the end of the trace is searched."""


@dataclass(slots=True)
class Losses:
    """What could not be read from a file as it is."""

    damaged_events: int = 0
    """Places at which something else than an event was found; reading continued after it."""
    lost_bytes: int = 0
    """Bytes in such places, and after the last whole event of a truncated file."""
    repaired_events: int = 0
    """Events that were not strict JSON and were repaired: NaN, control characters, integers above 64 bits, unpaired
    surrogates, bytes that are not UTF-8, quotes within strings, words and hexadecimal numbers, missing values."""
    is_cut: bool = False
    """True if the file ends inside the events."""
    damaged_keys: tuple[str, ...] = ()
    """Keys beside the events whose values cannot be read, or only in part."""
    lost_key_bytes: int = 0
    """Bytes between such keys that could not be read."""
    has_second: bool = False
    """True if another trace, which is not read, follows the end of this one."""


@dataclass(slots=True)
class ChromeFile:
    """One pass over a file."""

    name: str
    """The file's name in messages."""
    chunks: Iterable[bytes]
    scanner: Scanner
    list_key: str = EVENTS
    """Key of the list whose elements are scanned."""
    losses: Losses = field(default_factory=Losses)
    _feed: TextFeed = field(init=False)
    _keys: TopLevelKeys = field(init=False)

    def __post_init__(self) -> None:
        self.scanner.recovers = True
        self._feed = TextFeed(self.chunks)
        self._keys = TopLevelKeys(self._feed)

    @property
    def metadata(self) -> dict[str, Any]:
        """Top-level keys except the events; complete only after the last chunk."""
        return self._keys.values

    @property
    def num_bytes(self) -> int:
        """Bytes of text read so far."""
        return self._feed.num_bytes

    def scanned(self) -> Iterator[Text]:
        """Scans chunk by chunk, and yields the text of each chunk while the scanner holds its rows.

        Raises:
            DataError: It is not a Chrome trace at all.
        """
        source = self._feed
        window, at = TextWindow(self._first_event()), 0
        while True:
            status, behind = self.scanner.scan(window.text, at, window.end)
            self.losses.damaged_events += self.scanner.num_damaged
            self.losses.lost_bytes += self.scanner.lost_bytes
            if self.scanner.num_damaged or self.scanner.num_rows:
                yield from self._strict(window.text, at, behind)
            at = behind
            if status is Status.FULL:
                continue
            if status is Status.ENDED:
                at = window.look_ahead(at - 1, source)  # the bracket, after which an event may follow
                if self._is_end(window, at):
                    further = self._keys.read_after_events(window.cut(at + 1, window.end))
                    self._note_keys()
                    if further is None:
                        return
                    window, at = TextWindow(further), 0
                    continue
            elif status is Status.MORE and window.end - at < MOST_EVENT_BYTES:
                if window.slide(at, source):
                    at = 0
                    continue
                at = 0
                if self.scanner.next_event(window.text, 0, window.end) is None:
                    self.losses.is_cut = window.end > 0 or not self._keys.is_array
                    self.losses.lost_bytes += window.end
                    return
            at, lost = self._behind_damage(window, at, source)
            yield from self._scanned_again(*self._recovered([lost], 1, len(lost))) if lost else ()

    def _first_event(self) -> bytes:
        text = self._keys.read_until(self.list_key)
        if text is None:
            if self._keys.lost_bytes or self._keys.is_cut:
                found = "nothing usable: it is damaged or cut off before its first event"
            else:
                found = ", ".join(list(self._keys.values)[:SHOWN_KEYS]) or "nothing"
            kind = "Chrome" if self.list_key == EVENTS else "execution"
            raise DataError(f"no {self.list_key} in {self.name}: found {found}", hint=f"it is not a {kind} trace")
        self._note_keys()
        return text

    def _note_keys(self) -> None:
        keys, losses = self._keys, self.losses
        losses.is_cut |= keys.is_cut
        losses.damaged_keys, losses.lost_key_bytes = tuple(keys.damaged), keys.lost_bytes
        losses.has_second |= keys.has_second

    def _strict(self, text: Text, at: int, behind: int) -> Iterator[Text]:
        """Yields the scanned text as strict JSON in UTF-8; if it was not, its repaired events are scanned again."""
        scanner = self.scanner
        odd, num_damaged, lost_bytes = scanner.column("flags"), scanner.num_damaged, scanner.lost_bytes
        odd = odd & (REPAIR | NON_ASCII)
        is_strict = not odd.any() or (not (odd & REPAIR).any() and valid_utf8(bytes(text[at:behind])))
        if is_strict and not num_damaged:
            yield text
            return
        starts, ends = scanner.column("start").tolist(), scanner.column("end").tolist()
        events = [bytes(text[start:end]) for start, end in zip(starts, ends, strict=True)]
        strict = [repaired(event) if is_odd else event for event, is_odd in zip(events, odd.tolist(), strict=True)]
        self.losses.repaired_events += sum(one is not other for one, other in zip(events, strict, strict=True))
        if num_damaged:
            gaps = [bytes(text[end:start]) for end, start in zip([at, *ends], [*starts, behind], strict=True)]
            first, *between = self._recovered(gaps, num_damaged, lost_bytes)
            strict = [*first, *(event for one, behind_it in zip(strict, between, strict=True)
                                for event in (one, *behind_it))]
        yield from self._scanned_again(strict)

    def _recovered(self, texts: Sequence[bytes], num_damaged: int, lost_bytes: int) -> list[list[bytes]]:
        """Recovers events from the text between other events that was counted as damage, and corrects the counts.

        Args:
            texts: The text between events; only blanks and commas where nothing is damaged.
            num_damaged: Places in all of it that were counted as damage.
            lost_bytes: Bytes that were counted as lost in these places.

        Returns:
            The recovered events in each text.
        """
        each = [recovered(text) for text in texts]
        num_recovered = sum(len(found) for found, *_ in each)
        if num_recovered:  # otherwise the counts of the scanner are right
            self.losses.repaired_events += num_recovered
            self.losses.damaged_events += sum(places for _, places, _ in each) - num_damaged
            self.losses.lost_bytes += sum(size for *_, size in each) - lost_bytes
        return [list(map(repaired, found)) for found, *_ in each]

    def _scanned_again(self, events: Sequence[bytes]) -> Iterator[Text]:
        """Scans these events, in several scans if they are many, and yields their text while the scanner holds rows."""
        text, at, status = b",".join(events) + b"]", 0, Status.FULL
        while events and status is Status.FULL:
            status, at = self.scanner.scan(text, at, len(text))
            if self.scanner.num_rows:
                yield text

    def _is_end(self, window: TextWindow, at: int) -> bool:
        """Returns False if more events follow, because damage produced the bracket or made reading resume before it."""
        follows = window.cut(at + 1, at + AHEAD_BYTES)
        is_last = SECOND.search(window.cut(at + 1, at + KEYS_BYTES)) is not None
        return is_last or ends_keys(follows) or self.scanner.next_event(window.text, at, window.end) is None

    def _behind_damage(self, window: TextWindow, at: int, source: TextFeed) -> tuple[int, bytes]:
        """Returns where the next event begins after the damage, or the text ends; and the skipped text, if short."""
        self.losses.damaged_events += 1
        at = window.look_ahead(at, source)
        num_bytes = element_bytes(window.cut(at, at + AHEAD_BYTES))
        if num_bytes:
            self.losses.lost_bytes += num_bytes
            return at + num_bytes, b""
        is_short = True
        while True:
            found = self.scanner.next_event(window.text, at, window.end)
            if found is None and is_short and window.end - at < MOST_RECOVERED_BYTES:
                has_more, at = window.slide(at, source), 0  # all of the damaged text may show what was meant
                if has_more:
                    continue
            if found is None:
                ended = end_of_events(window.cut(at, window.end), is_array=self._keys.is_array)
                found = None if ended is None else at + ended
            if found is not None:
                self.losses.lost_bytes += found - at
                return found, window.cut(at, found) if is_short else b""
            passed = max(at, window.end - AHEAD_BYTES)  # the next event may begin before the end of the window
            self.losses.lost_bytes += passed - at
            rest = window.cut(at, window.end) if is_short else b""
            at, is_short = 0, False
            if not window.slide(passed, source):
                self.losses.lost_bytes += window.end
                return window.end, rest


def base_ns_of(metadata: Mapping[str, Any]) -> int:
    """Returns the offset, in ns, that is added to every time of a file with these keys."""
    try:
        number = int(metadata.get("baseTimeNanoseconds") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if abs(number) < LATEST_NS else 0
