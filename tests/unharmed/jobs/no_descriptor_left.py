"""It holds every file that it may open while it trains (https://docs.python.org/3/library/resource.html)."""
# recorded: any
# says: training continues
import os
import resource

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
held = []
try:
    while True:
        held.append(os.dup(1))
except OSError:
    print("none left")
for number in range(1, 9):
    step(model, optimizer, number)
for one in held:
    os.close(one)
print(digest(model))
