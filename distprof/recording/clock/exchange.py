"""Time asked over TCP, and the bounds of a clock's offset that follow from an answer."""

from __future__ import annotations

import socket
import struct
import time

from msgspec.structs import replace

from distprof.contract.rank_json import ClockSample

ASK = 0
"""The question; any other byte is the number of a meeting at which the client has asked enough."""
ANSWER = struct.Struct("<qq")
"""When the question was there, and when the answer left; ns since the epoch, this rank's clock."""
MEETING_S = 0.04
"""Time for questions between two steps, but for the last ones, which get what is left; an answer that is under way may
take as much again."""
ENOUGH_ROUNDS = 32
GOOD_NS = 100_000
"""A bound with which that many rounds are enough."""
DRIFT_RATIO = 1e-3
"""Two clocks drift apart by no more: quartz by 1e-4, and adjtimex slews a clock by 5e-4 at most."""


def best_of(connection: socket.socket, peer: int, until: float) -> tuple[ClockSample, OSError | None]:
    """The sample with the least bound until a time of `time.monotonic`, and the error that ended it early.

    Raises:
        OSError: There was no answer at all.
    """
    best: ClockSample | None = None
    rounds = 0
    # once in any case: on a busy machine the time may be over before the first question
    while not rounds or (time.monotonic() < until and (
            rounds < ENOUGH_ROUNDS or best is None or (best.bound_ns or 0) > GOOD_NS)):
        connection.settimeout(max(until - time.monotonic(), MEETING_S))
        try:
            found = compared(peer, *_ask_once(connection))
        except OSError as error:
            if best is None:
                raise
            return replace(best, rounds=rounds), error
        rounds += 1
        if found is not None and (best is None or (found.bound_ns or 0) < (best.bound_ns or 0)):
            best = found
    if best is None:
        raise TimeoutError(f"none of {rounds} answers is usable")
    return replace(best, rounds=rounds), None


def compared(peer: int, asked_ns: int, there_ns: int, left_ns: int, back_ns: int) -> ClockSample | None:
    """The sample that one question gives; None where a clock was set in between.

    Whatever the way there and the way back took, the offset is at most `there - asked` and at least `left - back`.

    Args:
        peer: Who was asked.
        asked_ns: When the question left, on this rank's clock.
        there_ns: When it was there, on the peer's clock.
        left_ns: When the answer left, on the peer's clock.
        back_ns: When it was here, on this rank's clock.
    """
    away_ns, there_for_ns = back_ns - asked_ns, left_ns - there_ns
    if there_for_ns < 0 or away_ns < there_for_ns * (1 - DRIFT_RATIO):
        return None
    way_ns = max(away_ns - there_for_ns, 0)
    drifted_ns = int(away_ns * DRIFT_RATIO / 2) + 1  # while the question was away
    return ClockSample(peer=peer, at_ns=(asked_ns + back_ns) // 2,
                       offset_ns=(there_ns - asked_ns + left_ns - back_ns) // 2,
                       bound_ns=-(-way_ns // 2) + drifted_ns + 1, rounds=1)


def _ask_once(connection: socket.socket) -> tuple[int, int, int, int]:
    answer = b""
    asked_ns = time.time_ns()
    connection.sendall(bytes([ASK]))
    while len(answer) < ANSWER.size:
        part = connection.recv(ANSWER.size - len(answer))
        if not part:
            raise ConnectionResetError("it has stopped recording")
        answer += part
    back_ns = time.time_ns()
    return asked_ns, *ANSWER.unpack(answer), back_ns
