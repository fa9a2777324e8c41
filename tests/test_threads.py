"""Threads, and none where a process may have little address space."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from distprof import threads
from distprof.threads import UnseenThread, is_unseen, running


@pytest.mark.parametrize(("limit", "is_inline"), [
    (resource.RLIM_INFINITY, False), (threads.SCARCE_BYTES, False), (threads.SCARCE_BYTES - 1, True)])
def test_short_memory_starts_no_thread(monkeypatch, limit, is_inline):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    with threads.thread_pool(2) as executor:
        assert isinstance(executor, threads.InlineExecutor if is_inline else ThreadPoolExecutor)
        assert list(executor.map(divmod, [7, 8], [2, 3])) == [(3, 1), (2, 2)]
        with pytest.raises(ZeroDivisionError):
            list(executor.map(divmod, [7], [0]))


def test_a_thread_of_ours_is_not_seen_gets_no_signal_and_can_be_waited_for():
    begun, go, seen = threading.Event(), threading.Event(), {}

    def work(word: str) -> None:
        seen.update(word=word, mask=signal.pthread_sigmask(signal.SIG_BLOCK, []), traced=sys.gettrace(),
                    unseen=is_unseen(threading.get_ident()))
        begun.set()
        go.wait()

    before = set(running())
    known, mask = threading.enumerate(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    threading.settrace(lambda *_: None)
    thread = UnseenThread(work, "hello")
    assert not thread.is_alive() and thread.join()
    thread.start()
    threading.settrace(None)
    assert begun.wait(10) and thread.is_alive() and not thread.join(0.01)
    assert threading.enumerate() == known and signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert set(running()) - before and (seen["word"], seen["traced"], seen["unseen"]) == ("hello", None, True)
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} <= seen["mask"]
    child = os.fork()
    if not child:
        os._exit(not (not thread.is_alive() and thread.join() and not running()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it does not run there"
    go.set()
    assert thread.join() and not thread.is_alive() and threading.enumerate() == known
    assert set(running()) <= before
