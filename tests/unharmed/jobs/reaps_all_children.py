"""An init-like handler of SIGCHLD reaps every child that it has (https://github.com/pytorch/pytorch/pull/3474)."""
# telling
import os
import signal
import time

reaped = []


def reap(number, frame):
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        reaped.append(os.waitstatus_to_exitcode(status))


signal.signal(signal.SIGCHLD, reap)

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(9):
    step(model, optimizer, number)
    if number % 3 == 0:
        child = os.fork()
        if not child:
            os._exit(number)
until = time.monotonic() + 20
while len(reaped) < 3 and time.monotonic() < until:
    time.sleep(0.01)
print(sorted(reaped), digest(model))
