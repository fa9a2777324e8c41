"""A sampling profiler of its own: SIGPROF looks at the frame that runs (https://docs.python.org/3/library/signal.html#signal.setitimer)."""
import signal
import time

from small import digest, net, sgd, step

seen = set()
signal.signal(signal.SIGPROF, lambda number, frame: seen.add(frame.f_code.co_name))
signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)


def busy():
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass


model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
busy()
signal.setitimer(signal.ITIMER_PROF, 0)
print("busy" in seen, signal.getsignal(signal.SIGPROF) is not None, digest(model))
