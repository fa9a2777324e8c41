"""Preemption: SIGUSR1 sets a flag, the loop saves, asks to be queued again and leaves (https://github.com/kyutai-labs/pocket-tts/pull/277)."""
# ends: 85
# recorded: partial
import os
import signal
import sys
from pathlib import Path

asked = {"to stop": False}
signal.signal(signal.SIGUSR1, lambda number, frame: asked.update({"to stop": True}))

import torch
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(20):
    step(model, optimizer, number)
    if number == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
    if asked["to stop"]:
        torch.save({"model": model.state_dict(), "number": number}, "checkpoint.pt")
        Path("requeue").write_text("scontrol requeue 1234")
        print("stopped", number, digest(model))
        sys.exit(85)
