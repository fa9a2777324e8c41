"""A watchdog thread that looks at the stacks of all threads with `sys._current_frames` (https://github.com/benfred/py-spy/issues/402)."""
import sys
import threading

from small import digest, net, sgd, step

beat, stop, seen = threading.Event(), threading.Event(), set()


def watch():
    while not stop.wait(0.005):
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            seen.add(frame.f_code.co_name)
            frame = frame.f_back
        if beat.is_set():
            beat.clear()


watching = threading.Thread(target=watch, daemon=True)
watching.start()
model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    beat.set()
    while beat.is_set():
        pass
stop.set()
watching.join()
print("<module>" in seen, digest(model))
