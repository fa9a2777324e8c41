import sys

import small

from . import NAME
from .parts import Model

model = Model()
optimizer = small.sgd(model)
for number in range(int(sys.argv[-1])):
    small.step(model, optimizer, number)
print(NAME, __name__, __package__, __spec__.name, sys.argv[1:], sys.path[0] != "", small.digest(model))
