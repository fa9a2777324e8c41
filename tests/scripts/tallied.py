"""Another script, with all that torch's CPU allocator does written down: `tallied.py LIBRARY FOLDER SCRIPT`."""

import ctypes
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import torch  # noqa: F401 (the library needs it)

library, folder, script = sys.argv[1:]
tally = ctypes.CDLL(library)
tally.tally_size.restype = ctypes.c_int64
tally.tally_start()
sys.argv = [script]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    events = np.zeros((tally.tally_size(), 4), np.int64)
    tally.tally_copy(events.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(events)))
    np.savez(Path(folder, f"rank{os.environ['RANK']}.npz"), events=events, thread=os.getpid())
