"""Streams are None, as under pythonw, and later closed (https://docs.python.org/3/library/sys.html#sys.__stdout__)."""
import os
import sys
from pathlib import Path

from small import digest, net, sgd, step

print("begin", flush=True)
out, sys.stdout, sys.stderr, sys.stdin = sys.stdout, None, None, None
model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    if number == 4:
        os.close(2)
        os.close(0)
out.write(digest(model) + "\n")
Path("weights").write_text(digest(model))
out.close()
