"""The job of train_ddp.py with a late rank: the MLP of the second block sleeps 200 ms on rank 2, in each forward call.

torchrun --nproc-per-node 4 examples/late_rank.py --steps 40
"""

import time

import torch.distributed as dist
import train_ddp


class LateMLP(train_ddp.MLP):
    def forward(self, x):
        if dist.get_rank() == 2:
            time.sleep(0.2)
        return super().forward(x)


class LateTransformer(train_ddp.Transformer):
    def __init__(self, width):
        super().__init__(width=width)
        self.layers[1].mlp = LateMLP(width)


if __name__ == "__main__":
    train_ddp.Transformer = LateTransformer
    train_ddp.main()
