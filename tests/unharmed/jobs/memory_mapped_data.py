"""A data set that is mapped into memory, in a file that it writes to (https://numpy.org/doc/stable/reference/generated/numpy.memmap.html)."""
import numpy as np
import torch
from small import digest, net, sgd

data = np.memmap("data.bin", dtype=np.float32, mode="w+", shape=(64, 8))
data[:] = np.arange(512, dtype=np.float32).reshape(64, 8) / 512
data.flush()
shared = torch.from_file("data.bin", shared=True, size=512).view(64, 8)
model = net()
optimizer = sgd(model)
for number in range(8):
    loss = model(torch.from_numpy(data[8 * number:8 * number + 8])).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shared[number] += 1
print(data[:8, 0].tolist(), digest(model))
