"""Handlers that call the one before them, of every signal (https://github.com/Lightning-AI/pytorch-lightning/issues/12463 composes so)."""
# telling
import os
import signal

from small import digest, net, sgd, step


def chain(number, name):
    before = signal.getsignal(number)
    print(name, before if before in (signal.SIG_DFL, signal.SIG_IGN) else before.__name__)

    def handler(got, frame):
        print(name, "got", signal.Signals(got).name)
        if callable(before):
            before(got, frame)

    handler.__name__ = name
    signal.signal(number, handler)


model = net()
optimizer = sgd(model)
signal.signal(signal.SIGINT, signal.SIG_DFL)
for number in range(10):
    if number < 4:
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP):
            chain(one, f"handler{number}")
    step(model, optimizer, number)
    if number in (2, 4, 9):
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP):
            os.kill(os.getpid(), one)
print(digest(model))
