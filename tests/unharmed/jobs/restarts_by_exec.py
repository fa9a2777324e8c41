"""After some steps it starts itself anew in the same process, with what it saved (https://github.com/quodlibet/quodlibet/issues/2376)."""
# real
# recorded: any
import os
import sys
from pathlib import Path

import torch
from small import digest, net, sgd, step

lives = len(sys.argv)
model = net()
optimizer = sgd(model)
if Path("saved.pt").exists():
    model.load_state_dict(torch.load("saved.pt", weights_only=True))
for number in range(6 * lives, 6 * lives + 6):
    step(model, optimizer, number)
torch.save(model.state_dict(), "saved.pt")
print("life", lives, sys.argv[1:], digest(model), flush=True)
if lives < 3:
    os.execv(sys.executable, [sys.executable, *sys.argv, f"life{lives}"])
