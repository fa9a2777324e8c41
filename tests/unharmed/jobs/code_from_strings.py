"""Models and loops that are made of strings, without a file behind them (https://docs.python.org/3/library/functions.html#exec)."""
from small import digest, loss_of, sgd

space = {"__name__": "generated"}
exec("""
import torch
from torch import nn
torch.manual_seed(0)
class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
    def forward(self, x):
        return self.inner(x).tanh()
""", space)
Late = type("Late", (space["Made"],), {"forward": eval("lambda self, x: self.inner(x).sigmoid()")})
for kind in (space["Made"], Late):
    model = kind()
    optimizer = sgd(model)
    loop = compile("for number in range(6):\n    optimizer.zero_grad(); loss_of(model, number).backward(); optimizer.step()",
                   "<loop>", "exec")
    exec(loop)
    print(kind.__module__, kind.__qualname__, digest(model))
