"""Threads, locks and sleep are put in the place of Python's own by a library, which counts them (https://github.com/gevent/gevent/issues/63)."""
# recorded: any
# telling
import _thread
import threading
import time
from collections import Counter

from small import digest, net, sgd, step

started = Counter()


def counted(owner, name):
    plain = getattr(owner, name)

    def ours(*args, **kwargs):
        started[f"{owner.__name__}.{name}"] += 1
        return plain(*args, **kwargs)

    setattr(owner, name, ours)


for owner, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread"), (time, "sleep"),
                    (threading, "Event"), (threading, "Lock"), (threading, "RLock"), (threading, "Condition")):
    counted(owner, name)
model = net()
optimizer = sgd(model)
for number in range(12):
    step(model, optimizer, number)
    if number % 4 == 0:
        thread = threading.Thread(target=time.sleep, args=(0.001,))
        thread.start()
        thread.join()
    print(number, sorted(started.items()))
print(digest(model))
