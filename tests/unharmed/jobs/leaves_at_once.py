"""`os._exit` as soon as the weights are there, to be quick (https://github.com/gaogaotiantian/viztracer/issues/340)."""
# ends: 7
# recorded: any
import os
import sys

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(digest(model))
sys.stdout.flush()
os._exit(7)
