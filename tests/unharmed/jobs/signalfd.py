"""Signals are read from a descriptor: signalfd, as systemd's and libuv's loops do (man 2 signalfd)."""
import ctypes
import os
import select
import signal
import struct

from small import digest, net, sgd, step

WATCHED = (signal.SIGTERM, signal.SIGCHLD)
libc = ctypes.CDLL(None, use_errno=True)
model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
mask = (ctypes.c_uint64 * 16)()
mask[0] = sum(1 << (number - 1) for number in WATCHED)
descriptor = libc.signalfd(-1, mask, 0)
for number in range(1, 12):
    step(model, optimizer, number)
    if number in (3, 9):
        os.kill(os.getpid(), signal.SIGTERM)
        ready, _, _ = select.select([descriptor], [], [], 20)
        print(number, signal.Signals(struct.unpack("I", os.read(descriptor, 128)[:4])[0]).name if ready else None)
print(select.select([descriptor], [], [], 0)[0], digest(model))
