"""Our hooks have numbers of their own, whatever is nested and whichever threads work at the same time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import nn
from torch.utils.hooks import RemovableHandle

from distprof.model.quiet import unnoticed


def new_number() -> int:
    return RemovableHandle(OrderedDict[int, Any]()).id


def test_nested_contexts_give_no_number_twice():
    before = RemovableHandle.next_id
    with unnoticed():
        numbers = [new_number()]
        with unnoticed():
            numbers += [new_number(), new_number()]
        numbers += [new_number()]
    with unnoticed():
        numbers += [new_number()]
    assert len({*numbers}) == len(numbers) and max(numbers) < 0
    assert RemovableHandle.next_id == before, "the script's numbers continue where they were"


def test_contexts_of_two_threads_that_overlap_give_no_number_twice():
    before = RemovableHandle.next_id
    first, second, numbers = unnoticed(), unnoticed(), list[int]()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        def on(thread: ThreadPoolExecutor, call: Callable[[], object]) -> object:
            return thread.submit(call).result()

        for thread, call in ((one, first.__enter__), (other, second.__enter__), (one, first.__exit__),
                             (other, second.__exit__)):
            on(thread, call)
            numbers += [thread.submit(new_number).result() for thread in (one, other) if call != second.__exit__]
    assert len({*numbers}) == len(numbers)
    assert RemovableHandle.next_id == before


def test_no_hook_of_a_busy_script_is_lost():
    model, over = nn.Linear(2, 2), threading.Event()

    def ours() -> None:
        while not over.is_set():
            with unnoticed(), unnoticed():
                new_number()

    threads = [threading.Thread(target=ours) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        model.register_forward_hook(lambda *_: None)
    over.set()
    for thread in threads:
        thread.join()
    assert len(model._forward_hooks) == 2000
    assert RemovableHandle.next_id >= 0 and new_number() not in model._forward_hooks


def test_a_hook_that_is_loaded_meanwhile_keeps_its_number():
    before = RemovableHandle.next_id
    with unnoticed():
        RemovableHandle(OrderedDict[int, Any]()).__setstate__((None, before + 7))
        ours = new_number()
    assert new_number() > ours >= before + 8
    with unnoticed():
        assert new_number() < 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_meanwhile_counts_like_the_script():
    before, entered, over = RemovableHandle.next_id, threading.Event(), threading.Event()

    def ours() -> None:
        with unnoticed():
            entered.set()
            over.wait()

    thread = threading.Thread(target=ours)
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        code = 1
        try:
            with unnoticed():
                number = new_number()
            code = 0 if number < 0 and RemovableHandle.next_id == before else 2
        finally:
            os._exit(code)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
