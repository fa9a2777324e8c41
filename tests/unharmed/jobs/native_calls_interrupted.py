"""Calls of C that give up when a signal interrupts them, which a profiler's timer did (https://github.com/plasma-umass/scalene/pull/1062)."""
import ctypes
import errno
import threading

from small import digest, net, sgd, step

libc = ctypes.CDLL(None, use_errno=True)
interrupted = []


def wait(ms):
    if libc.poll(None, 0, ms) < 0 and ctypes.get_errno() == errno.EINTR:
        interrupted.append(ms)


model = net()
optimizer = sgd(model)
for number in range(12):
    thread = threading.Thread(target=wait, args=(40,))
    thread.start()
    step(model, optimizer, number)
    wait(30)
    thread.join()
print(interrupted, digest(model))
