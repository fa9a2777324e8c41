"""The exception that ends a script, in a line."""

from __future__ import annotations

import json

import pytest

from distprof.contract.stuck import LONGEST
from distprof.recording.failure import in_a_line


def raised(act) -> BaseException:
    with pytest.raises(Exception) as caught:
        act()
    return caught.value


def test_what_it_says_and_where():
    def fail():
        raise ValueError("bad\n   sample 17")

    assert in_a_line(raised(fail)) == (
        f"ValueError in the script: bad sample 17 (test_failure.py:{fail.__code__.co_firstlineno + 1})")


def test_the_line_is_that_of_the_script_and_not_of_a_library():
    def parse():
        return json.loads("{")

    assert in_a_line(raised(parse)).endswith(f"(test_failure.py:{parse.__code__.co_firstlineno + 1})")


def test_places_in_native_code_and_the_rest_of_a_long_message_are_left_out():
    error = RuntimeError(f"[/build/gloo/transport/tcp/pair.cc:537] Connection closed by peer {'x' * 400}")
    text = in_a_line(error)
    assert text.startswith("RuntimeError in the script: Connection closed by peer xxx") and text.endswith("...")
    assert len(text) == LONGEST + len("RuntimeError in the script: ")


def test_an_exception_that_says_nothing():
    assert in_a_line(KeyError()) == "KeyError in the script"
