import random
import sys

sys.path.append(".")
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(random.Random(0).random(), sys.argv, digest(model))
