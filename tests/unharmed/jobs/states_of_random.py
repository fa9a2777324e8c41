"""States of all random generators after each step, in deterministic mode (https://pytorch.org/docs/stable/notes/randomness.html)."""
# telling
import hashlib
import random

import numpy as np
import torch
from small import batch, digest

torch.use_deterministic_algorithms(True)
torch.manual_seed(3)
random.seed(3)
np.random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters())
for number in range(9):
    samples, wanted = batch(number)
    loss = (model(samples + torch.randn(16, 8) * random.random() * np.random.rand()) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode(),
              np.random.get_state()[1].tobytes()]
    print(number, [hashlib.sha256(one).hexdigest()[:8] for one in states], torch.are_deterministic_algorithms_enabled())
print(digest(model))
