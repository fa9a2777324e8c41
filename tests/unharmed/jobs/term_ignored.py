"""A job under `nohup`: signals are ignored (https://github.com/determined-ai/determined/pull/6250)."""
import os
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
print(signal.getsignal(signal.SIGTERM), digest(model))
