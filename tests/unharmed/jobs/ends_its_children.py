"""Children that it forks and ends by SIGTERM, as pools and watchdogs do (https://github.com/byllyfish/shellous/issues/169)."""
import multiprocessing
import os
import signal
import subprocess
import time

from small import digest, net, sgd, step

context = multiprocessing.get_context("fork")


def sleep(handled):
    if handled:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(6))
    ready.set()
    time.sleep(60)


model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    if number in (0, 3, 7):
        for handled in (False, True):
            ready = context.Event()
            child = context.Process(target=sleep, args=(handled,), daemon=True)
            child.start()
            ready.wait()
            child.terminate()
            child.join()
            print(number, handled, child.exitcode)
        tool = subprocess.Popen(["sleep", "60"])
        tool.terminate()
        print(tool.wait())
print(digest(model))
