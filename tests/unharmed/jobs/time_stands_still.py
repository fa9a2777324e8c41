"""All clocks of Python stand still for some steps, as freezegun has it in tests (https://github.com/spulec/freezegun/issues/384)."""
# recorded: any
# telling
import time
from contextlib import ExitStack
from unittest import mock

from small import digest, net, sgd, step

CLOCKS = ("time", "monotonic", "perf_counter")
model = net()
optimizer = sgd(model)
for number in range(12):
    with ExitStack() as frozen:
        if number not in (0, 7):
            for name in CLOCKS:
                frozen.enter_context(mock.patch.object(time, name, lambda: 1e9))
                frozen.enter_context(mock.patch.object(time, f"{name}_ns", lambda: 10**18))
        loss = step(model, optimizer, number)
        print(number, loss, time.time() == 1e9)
print(digest(model))
