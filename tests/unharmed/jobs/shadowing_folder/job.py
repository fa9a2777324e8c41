"""A folder with modules named like those of Python that are its own (https://github.com/numpy/numpy/issues/16198)."""
# real
import statistics

import csv
import graphlib
import pyarrow
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
print(statistics.OWN, csv.OWN, graphlib.OWN, pyarrow.OWN, digest(model))
