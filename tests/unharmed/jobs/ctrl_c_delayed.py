"""Ctrl-C is held back while a checkpoint is written, then raised and caught (https://github.com/wandb/wandb/issues/30)."""
# recorded: partial
# ends: 130
import os
import signal
import sys

import torch
from small import digest, net, sgd, step


class HeldBack:
    def __enter__(self):
        self.came = None
        self.before = signal.signal(signal.SIGINT, lambda *got: setattr(self, "came", got))

    def __exit__(self, *_):
        signal.signal(signal.SIGINT, self.before)
        if self.came:
            self.before(*self.came)


model = net()
optimizer = sgd(model)
try:
    for number in range(20):
        step(model, optimizer, number)
        with HeldBack():
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            torch.save(model.state_dict(), "checkpoint.pt")
except KeyboardInterrupt:
    print("interrupted after", number, digest(model))
    sys.exit(130)
