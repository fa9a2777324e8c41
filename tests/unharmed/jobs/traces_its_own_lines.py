"""Its own coverage by `sys.settrace`, and a profile by `sys.setprofile` (https://github.com/rkern/line_profiler)."""
import sys
import threading
from collections import Counter

from small import digest, net, sgd, step

lines, calls = Counter(), Counter()
OWN = step.__code__.co_filename


def trace(frame, event, argument):
    if frame.f_code.co_filename == OWN:
        lines[frame.f_code.co_name, event] += 1
        return trace
    return None


def profile(frame, event, argument):
    if frame.f_code.co_filename == OWN:
        calls[frame.f_code.co_name, event] += 1


model = net()
optimizer = sgd(model)
sys.settrace(trace)
threading.settrace(trace)
for number in range(4):
    step(model, optimizer, number)
    print(sys.gettrace() is trace, threading.gettrace() is trace)
sys.settrace(None)
threading.settrace(None)
sys.setprofile(profile)
for number in range(4, 8):
    step(model, optimizer, number)
    print(sys.getprofile() is profile)
sys.setprofile(None)
print(sorted(lines.items()), sorted(calls.items()), digest(model))
