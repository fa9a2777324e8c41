"""It forks twice, leaves its session and its descriptors, and trains in the background (https://peps.python.org/pep-3143)."""
# recorded: any
# says:
import os
import sys
import time
from pathlib import Path

from small import digest, net, sgd, step


def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.umask(0o027)
    os.closerange(0, 256)
    os.open(os.devnull, os.O_RDWR)
    os.dup2(0, 1)
    os.dup2(0, 2)
    model = net()
    optimizer = sgd(model)
    for number in range(8):
        step(model, optimizer, number)
    Path("result.part").write_text(digest(model))
    Path("result.part").rename("result")
    sys.exit(0)


child = os.fork()
if not child:
    daemon()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
until = time.monotonic() + 60
while not Path("result").exists() and time.monotonic() < until:
    time.sleep(0.02)
print(Path("result").read_text())
