"""`scancel` of a job that knows nothing of signals (https://github.com/NVIDIA-NeMo/Automodel/issues/405)."""
# ends: -15
# recorded: partial
import os
import signal
import time

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(20):
    step(model, optimizer, number)
    if number == 2:
        print(digest(model), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
