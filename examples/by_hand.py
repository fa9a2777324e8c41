"""Parallel training written by hand, without a DeviceMesh: each kind on a small model, with torch.distributed alone.

    torchrun --nproc-per-node 2 examples/by_hand.py tp 2

The kinds are dp, tp, pp, cp (ring of send and receive), ulysses (all_to_all), gather (all_gather) and ep; several
axes at once are written like `pp 2 tp 2`, the first one slowest, and what is left of the ranks is data parallel.
`recompute` behind them repeats the forward calls of blocks in backward.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LENGTH, DEPTH, EXPERTS, BATCH = 16, 4, 8, 4, 4, 2
AXES = ("pp", "dp", "cp", "ulysses", "gather", "ep", "tp")


class Axis:
    """The ranks that differ from this one in one kind of parallelism."""

    def __init__(self, group: Any, ranks: list[int]) -> None:
        self.group, self.ranks = group, ranks
        self.size, self.place = len(ranks), ranks.index(dist.get_rank())

    def neighbour(self, step: int) -> int:
        return self.ranks[(self.place + step) % self.size]


def axes_of(sizes: dict[str, int]) -> dict[str, Axis]:
    """A group of each axis for this rank; every rank makes all groups."""
    world, found, stride = dist.get_world_size(), {}, 1
    for name, size in reversed(sizes.items()):
        for first in (rank for rank in range(world) if rank // stride % size == 0):
            ranks = [first + stride * place for place in range(size)]
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                found[name] = Axis(group, ranks)
        stride *= size
    return found


class Copy(torch.autograd.Function):
    """The input of layers that are split: its gradients are added up."""

    @staticmethod
    def forward(ctx, x, axis):
        ctx.axis = axis
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.axis.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    """The output of layers that are split: its parts are added up."""

    @staticmethod
    def forward(ctx, x, axis):
        x = x.contiguous()
        dist.all_reduce(x, group=axis.group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Gather(torch.autograd.Function):
    """Pieces of a sequence from all ranks, by a ring of messages or by all_gather; gradients go back added up."""

    @staticmethod
    def forward(ctx, x, axis, ring):
        ctx.axis = axis
        pieces = [torch.empty_like(x) for _ in range(axis.size)]
        pieces[axis.place] = x.contiguous()
        if not ring:
            dist.all_gather(pieces, x.contiguous(), group=axis.group)
        for step in range(axis.size - 1 if ring else 0):
            sent, got = (axis.place - step) % axis.size, (axis.place - step - 1) % axis.size
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, pieces[sent], axis.neighbour(1)),
                                            dist.P2POp(dist.irecv, pieces[got], axis.neighbour(-1))])
            for work in works:
                work.wait()
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.axis.group)
        return gradient.chunk(ctx.axis.size, dim=1)[ctx.axis.place], None, None


class Exchange(torch.autograd.Function):
    """all_to_all of equal parts along the first dimension; backward is the same."""

    @staticmethod
    def forward(ctx, x, axis):
        ctx.axis = axis
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=axis.group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, ctx.axis), None


class Attention(nn.Module):
    def __init__(self, axes):
        super().__init__()
        self.axes, parts = axes, axes["tp"].size if "tp" in axes else 1
        self.heads = HEADS // parts
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH // parts), nn.Linear(WIDTH // parts, WIDTH, bias=False)

    def forward(self, x):
        x = Copy.apply(x, self.axes["tp"]) if "tp" in self.axes else x
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        for name in ("cp", "gather"):
            if name in self.axes:
                key, value = (Gather.apply(part, self.axes[name], name == "cp") for part in (key, value))
        query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in (query, key, value))
        if "ulysses" in self.axes:
            query, key, value = (self._to_heads(part) for part in (query, key, value))
        weights = torch.softmax(query.transpose(1, 2) @ key.permute(0, 2, 3, 1), dim=-1)
        out = (weights @ value.transpose(1, 2)).transpose(1, 2)
        out = self._to_sequence(out) if "ulysses" in self.axes else out
        out = self.proj(out.flatten(-2))
        return Reduce.apply(out, self.axes["tp"]) if "tp" in self.axes else out

    def _to_heads(self, x):
        axis = self.axes["ulysses"]
        parts = torch.stack(x.chunk(axis.size, dim=2))
        return torch.cat(Exchange.apply(parts, axis).unbind(), dim=1)

    def _to_sequence(self, x):
        axis = self.axes["ulysses"]
        parts = torch.stack(x.chunk(axis.size, dim=1))
        return torch.cat(Exchange.apply(parts, axis).unbind(), dim=2)


class MLP(nn.Module):
    def __init__(self, axes):
        super().__init__()
        self.axes, parts = axes, axes["tp"].size if "tp" in axes else 1
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH // parts), nn.Linear(4 * WIDTH // parts, WIDTH, bias=False)

    def forward(self, x):
        x = Copy.apply(x, self.axes["tp"]) if "tp" in self.axes else x
        out = self.down(torch.relu(self.up(x)))
        return Reduce.apply(out, self.axes["tp"]) if "tp" in self.axes else out


class Experts(nn.Module):
    """Every token goes to the expert of its place, two tokens of a sample to each."""

    num_experts, top_k = EXPERTS, 1

    def __init__(self, axes):
        super().__init__()
        self.axis = axes["ep"]
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS // self.axis.size))

    def forward(self, x):
        by_expert = x.unflatten(1, (EXPERTS, -1)).transpose(0, 1)
        mine = torch.stack(self._exchanged(by_expert).chunk(self.axis.size)).transpose(0, 1)
        done = torch.stack([expert(tokens) for expert, tokens in zip(self.experts, mine, strict=True)])
        back = self._exchanged(torch.cat(done.transpose(0, 1).unbind()))
        return back.transpose(0, 1).flatten(1, 2)

    def _exchanged(self, x):
        return Exchange.apply(x, self.axis) if self.axis.size > 1 else x


class Block(nn.Module):
    def __init__(self, axes):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(axes)
        self.mlp = Experts(axes) if "ep" in axes else MLP(axes)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Stage(nn.Module):
    """The layers of a pipeline stage, named as in the whole model."""

    def __init__(self, axes, recompute=False):
        super().__init__()
        self.recompute = recompute
        stages, place = (axes["pp"].size, axes["pp"].place) if "pp" in axes else (1, 0)
        per_stage = DEPTH // stages
        self.layers = nn.ModuleDict({str(index): Block(axes)
                                     for index in range(place * per_stage, (place + 1) * per_stage)})

    def forward(self, x):
        for layer in self.layers.values():
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


def train_step(model: nn.Module, axes: dict[str, Axis], x: torch.Tensor) -> None:
    """Forward and backward, through the stages of a pipeline where there are any."""
    pipeline = axes.get("pp")
    if pipeline is None:
        model(x).square().mean().backward()
        return
    if pipeline.place:
        x = torch.empty_like(x)
        dist.recv(x, pipeline.neighbour(-1))
        x.requires_grad_()
    out = model(x)
    if pipeline.place + 1 < pipeline.size:
        dist.send(out.detach(), pipeline.neighbour(1))
        gradient = torch.empty_like(out)
        dist.recv(gradient, pipeline.neighbour(1))
        out.backward(gradient)
    else:
        out.square().mean().backward()
    if pipeline.place:
        dist.send(x.grad, pipeline.neighbour(-1))


def synchronise(model: nn.Module, axes: dict[str, Axis]) -> None:
    """Gradients are averaged over ranks that hold the same parameters; experts are not the same along ep."""
    for name, parameter in model.named_parameters():
        for axis in ("dp", "cp", "ulysses", "gather", "ep"):
            if axis in axes and not (axis == "ep" and "experts" in name):
                dist.all_reduce(parameter.grad, group=axes[axis].group)
                parameter.grad /= axes[axis].size


def pieces(arguments: list[str]) -> Iterator[tuple[str, int]]:
    for name, size in zip(arguments[::2], arguments[1::2], strict=True):
        if name not in AXES:
            raise SystemExit(f"unknown one {name}; choose from {', '.join(AXES)}")
        yield name, int(size)


def main(arguments: list[str], steps: int = 8) -> None:
    dist.init_process_group("gloo")
    recompute = "recompute" in arguments
    sizes = dict(pieces([word for word in arguments if word != "recompute"]))
    sizes = {"dp": dist.get_world_size() // prod(sizes.values()), **sizes} if "dp" not in sizes else sizes
    sizes = {name: sizes[name] for name in AXES if sizes.get(name, 1) > 1 or (name == "ep" and name in sizes)}
    axes = axes_of(sizes)
    torch.manual_seed(sum(axes[name].place * 10 ** digit for digit, name in enumerate(("pp", "tp", "ep"))
                          if name in axes))
    model = Stage(axes, recompute)
    for name, parameter in model.named_parameters():
        if "ep" in axes and "experts" not in name:
            dist.broadcast(parameter.data, axes["ep"].ranks[0], group=axes["ep"].group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sequence = prod(axes[name].size for name in ("cp", "ulysses", "gather") if name in axes)
    torch.manual_seed(100 + (axes["dp"].place if "dp" in axes else 0) + 10 * (axes["ep"].place if "ep" in axes else 0))
    for _ in range(steps):
        x = torch.randn(BATCH, LENGTH, WIDTH)
        place = next((axes[name].place for name in ("cp", "ulysses", "gather") if name in axes), 0)
        train_step(model, axes, x.chunk(sequence, dim=1)[place])
        synchronise(model, axes)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
