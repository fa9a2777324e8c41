"""A training thread that fails, seen by `threading.excepthook`; unraisable errors likewise (https://docs.python.org/3/library/threading.html#threading.excepthook)."""
# recorded: any
import sys
import threading

from small import digest, net, sgd, step

print(threading.excepthook is threading.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
threading.excepthook = lambda args: print("thread failed:", args.exc_type.__name__, args.exc_value, args.thread.name)
sys.unraisablehook = lambda args: print("unraisable:", args.exc_value)
model = net()
optimizer = sgd(model)


class Fails:
    def __del__(self):
        raise ValueError("in __del__")


def train():
    for number in range(6):
        step(model, optimizer, number)
    Fails()
    raise RuntimeError("after six steps")


thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
print(digest(model))
