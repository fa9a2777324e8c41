"""`python train.py | head`: SIGPIPE is as in C, and ends it (https://docs.python.org/3/library/signal.html#note-on-sigpipe)."""
# ends: -13
# recorded: any
import os
import signal

from small import digest, net, sgd, step

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(digest(model), flush=True)
read, write = os.pipe()
os.close(read)
os.write(write, b"one line too many")
