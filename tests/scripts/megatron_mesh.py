"""Layers of Megatron-core, tensor parallel on half of the ranks; its sizes are in parallel_state."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

WIDTH = 8
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
config = ModelParallelConfig(tensor_model_parallel_size=2, use_cpu_initialization=True, perform_initialization=True,
                             params_dtype=torch.float32)
torch.manual_seed(0)


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = ColumnParallelLinear(WIDTH, 4 * WIDTH, config=config, init_method=torch.nn.init.xavier_normal_,
                                       gather_output=False, bias=False)
        self.down = RowParallelLinear(4 * WIDTH, WIDTH, config=config, init_method=torch.nn.init.xavier_normal_,
                                      input_is_parallel=True, skip_bias_add=False, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))[0]))[0]


model = MLP()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(3, 2, WIDTH)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
