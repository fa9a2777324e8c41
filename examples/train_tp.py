"""The small transformer of train_ddp.py, 2-way tensor parallel x 2-way data parallel: plain PyTorch.

torchrun --nproc-per-node 4 examples/train_tp.py --steps 12
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from train_ddp import Transformer


class SplitAttention(torch.nn.Module):
    """Attention with separate projections: each rank of the tensor-parallel group has half of the heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.query = torch.nn.Linear(width, width)
        self.key = torch.nn.Linear(width, width)
        self.value = torch.nn.Linear(width, width)
        self.proj = torch.nn.Linear(width, width)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(x.transpose(1, 2).flatten(2))


PLAN = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.proj": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(),
}


def build(width, heads=4):
    model = Transformer(width=width, heads=heads)
    for layer in model.layers:
        layer.attention = SplitAttention(width, heads)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="sequences per data-parallel replica and step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tp", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = build(args.width)
    if args.tp > 1:
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], PLAN)
        # the head splits the vocabulary; its output is gathered for the loss
        parallelize_module(model, mesh["tp"], {"head": ColwiseParallel(output_layouts=Replicate())})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    data = mesh["dp"].get_group()
    torch.manual_seed(1 + mesh.get_local_rank("dp"))
    for step in range(args.steps):
        tokens = torch.randint(1000, (args.batch, 65))
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
            dist.all_reduce(gradient, group=data)
            gradient /= mesh.size(0)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
