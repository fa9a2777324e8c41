"""Layers of Megatron-core, tensor parallel on half of the ranks; its sizes are in parallel_state."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.distributed as dist

for name in ("megatron.core", "megatron.core.tensor_parallel"):  # all that is in them takes seconds on each rank
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [f"{folder}/{name.partition('.')[2].replace('.', '/')}"
                                  for folder in find_spec("megatron").submodule_search_locations]

from megatron.core import parallel_state  # noqa: E402
from megatron.core.model_parallel_config import ModelParallelConfig  # noqa: E402
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear  # noqa: E402

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
