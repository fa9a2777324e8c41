"""`os.closerange` in the midst of training, and files of its own under the numbers that are free then (https://docs.python.org/3/library/os.html#os.closerange)."""
# recorded: any
# telling
import os
from pathlib import Path

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
files = {}
for number in range(9):
    step(model, optimizer, number)
    if number in (1, 5):
        os.closerange(3, 1024)
        files = {name: os.open(name, os.O_CREAT | os.O_RDWR) for name in map(str, range(16))}
    for name, file in files.items():
        os.write(file, f"{name} {number}\n".encode())
for name, file in files.items():
    os.close(file)
print([Path(name).read_text().count("\n") for name in files], digest(model))
