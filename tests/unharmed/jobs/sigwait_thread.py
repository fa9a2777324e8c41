"""All signals are blocked, and one thread waits for them: `signal.sigwait` (https://docs.python.org/3/library/signal.html#signal.sigwait)."""
# recorded: any
# telling
import os
import signal
import threading

from small import digest, net, sgd, step

WAITED = {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT}
model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
got, stop = [], threading.Event()


def wait():
    while not stop.is_set():
        one = signal.sigwait(WAITED)
        got.append(signal.Signals(one).name)
        if one == signal.SIGTERM:
            stop.set()


waiting = threading.Thread(target=wait)
waiting.start()
number = 1
while number < 30 and not stop.is_set():
    step(model, optimizer, number)
    if number == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(got) < 1:
            stop.wait(0.01)
    if number == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait()
    number += 1
waiting.join()
print(got, number, digest(model))
