"""The whole model is pickled between steps, with hooks of its own, and its bytes are compared (https://github.com/deepspeedai/DeepSpeed/issues/5432)."""
# telling
import hashlib
import io
import pickle

import torch
from small import digest, net, sgd, step

calls = []


def of_mine(module, given, result):
    calls.append(type(module).__name__)


class Plain(pickle.Pickler):
    def persistent_id(self, one):
        return digest(one) if isinstance(one, torch.Tensor) else None


model = net()
model[1].register_forward_hook(of_mine)
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    out = io.BytesIO()
    Plain(out).dump((model, optimizer.state_dict()))
    print(number, hashlib.sha256(out.getvalue()).hexdigest()[:16])
    torch.save(model, "model.pt")
    model = torch.load("model.pt", weights_only=False)
    momentum = optimizer.state_dict()
    optimizer = sgd(model)
    optimizer.load_state_dict(momentum)
print(len(calls), sorted(vars(model)), digest(model))
