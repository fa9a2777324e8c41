"""Pickles that would run code or create objects when loaded, such as creating the file `made`."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path


class Calls:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def hostile_pickles(made: Path):
    """Returns name -> pickle."""
    command = f"touch {made}"
    call = Calls(os.system, command)
    plain = {"segments": [], "device_traces": []}
    frames = [{"filename": "a.py", "line": 1, "name": call}]
    entry = {"action": "alloc", "addr": 1, "size": 2, "stream": 0, "frames": frames}
    argument = text(command) + b"\x85R"
    return {
        "reduce": pickle.dumps(call), "reduce, protocol 2": pickle.dumps(call, protocol=2),
        "protocol 0": pickle.dumps(call, protocol=0),
        "in a frame": pickle.dumps(plain | {"device_traces": [[entry]]}),
        "as a key": b"\x80\x02}cposix\nsystem\n" + argument + b"K\x01s.",
        "builtin getattr": b"\x80\x02cbuiltins\ngetattr\ncos\npath\nX\x04\x00\x00\x00join\x86R.",
        "old builtin": b"\x80\x02c__builtin__\neval\n" + text(f"open({str(made)!r}, 'w')") + b"\x85R.",
        "stack global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + argument + b".",
        "inst": b"\x80\x02(" + text(command) + b"iposix\nsystem\n.",
        "obj": b"\x80\x02(cposix\nsystem\n" + text(command) + b"o.",
        "newobj": b"\x80\x02cbuiltins\nobject\n)\x81.", "newobj ex": b"\x80\x04cbuiltins\nobject\n)}\x92.",
        "build": b"\x80\x02}}b.", "extension 1": b"\x80\x02\x82\x01.", "extension 2": b"\x80\x02\x83\x01\x00.",
        "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.", "persistent id": b"\x80\x02K\x01Q.",
        "persistent id as text": b"\x80\x02Pname\n.", "next buffer": b"\x80\x05\x97.",
        "behind the end": pickle.dumps(plain)[:-1] + b"0cposix\nsystem\n" + argument + b"."}
