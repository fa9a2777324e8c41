"""examples/train_tp.py in which one rank sleeps in the MLP of one layer."""

import sys
import time
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_tp

LATE_RANK, NAP_S = 2, 0.04
plain_build = train_tp.build


def build(width, heads=4):
    model = plain_build(width, heads)
    mlp = model.layers[1].mlp
    forward = mlp.forward

    def late(x):
        if dist.get_rank() == LATE_RANK:
            time.sleep(NAP_S)
        return forward(x)

    mlp.forward = late
    return model


train_tp.build = build
train_tp.main()
