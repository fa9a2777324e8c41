"""TorchScript: models are scripted and traced within the loop, and their graphs printed (https://github.com/pytorch/pytorch/issues/20862)."""
# telling
import io
import warnings

import torch
from small import batch, digest, net, sgd, step

warnings.simplefilter("ignore")
model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    traced = torch.jit.trace(model, batch(0)[0])
    scripted = torch.jit.script(model)
    print(number, str(traced.inlined_graph).count("aten::linear"), len(str(traced.inlined_graph)),
          len(str(scripted.inlined_graph)), torch.equal(traced(batch(1)[0]), scripted(batch(1)[0])))
optimizer = torch.optim.SGD(scripted.parameters(), lr=0.1)
for number in range(8, 12):
    step(scripted, optimizer, number)
saved = io.BytesIO()  # torch writes other bytes of the same model from run to run
torch.jit.save(scripted, saved)
saved.seek(0)
print(digest(torch.jit.load(saved)))
