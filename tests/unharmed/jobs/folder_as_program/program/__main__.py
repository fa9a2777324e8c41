import sys

sys.path.append(".")
from beside import NAME
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(NAME, __name__, __package__, __file__.split("/")[-2:], sys.argv, sys.path[0].split("/")[-1], digest(model))
