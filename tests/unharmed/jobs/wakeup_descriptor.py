"""A loop of its own that is woken by `signal.set_wakeup_fd` (https://github.com/dabeaz/curio/issues/118)."""
# telling
import os
import signal
import socket

from small import digest, net, sgd, step

ours, theirs = socket.socketpair()
ours.settimeout(20)
theirs.setblocking(False)
for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(one, lambda *_: None)
print("before", signal.set_wakeup_fd(theirs.fileno()))
model = net()
optimizer = sgd(model)
for number in range(10):
    step(model, optimizer, number)
    for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        os.kill(os.getpid(), one)
        print(number, signal.Signals(ours.recv(1)[0]).name)
ours.setblocking(False)
try:
    print("more", ours.recv(10))
except BlockingIOError:
    print("no more")
print("still mine", signal.set_wakeup_fd(-1) == theirs.fileno(), digest(model))
