"""Ctrl-C that nobody catches: the traceback, and the exit code that Python then has (https://github.com/pytorch/pytorch/pull/3474)."""
# ends: 1
# recorded: partial
# real
import os
import signal

from small import net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(20):
    step(model, optimizer, number)
    if number == 2:
        os.kill(os.getpid(), signal.SIGINT)
