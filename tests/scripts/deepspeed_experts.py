"""DeepSpeed's MoE layer with experts divided over all ranks: its groups are in deepspeed.utils.groups."""

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.utils import groups

WIDTH = 8
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo will do, and compiling it takes minutes
deepspeed.init_distributed("gloo")
torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.moe = MoE(WIDTH, torch.nn.Linear(WIDTH, WIDTH), num_experts=4, ep_size=2, k=1, use_rts=False,
                       min_capacity=1)
        self.moe.set_deepspeed_parallelism()

    def forward(self, x):
        return self.moe(self.first(x))[0]


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(3, 2, WIDTH)).square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and "expert" not in name:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
assert groups._get_expert_parallel_world_size("ep_size_2") == 2
dist.destroy_process_group()
