"""The job of `distprof demo` in plain PyTorch: a small data parallel transformer; a layer of one rank is slow.

torchrun --nproc-per-node 4 demo.py --late-rank 2 --late-ms 90
"""

from __future__ import annotations

# ruff: noqa: E402
import argparse
import os
import signal
import socket
import sys
import time
from contextlib import suppress

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends each rank without a traceback, also during imports

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, HEADS, DEPTH, LENGTH, BATCH = 256, 64, 4, 4, 32, 4


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(x.transpose(1, 2).reshape(batch, length, width))
        return out


class MLP(nn.Module):
    """Two linear layers, and a pause before them on the late rank."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.pause_s = pause_s

    def forward(self, x: Tensor) -> Tensor:
        if self.pause_s:
            time.sleep(self.pause_s)
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), MLP(pause_s)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Transformer(nn.Module):
    """A language model with about 200,000 parameters."""

    def __init__(self, pauses_s: list[float]) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(map(Block, pauses_s))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def main() -> None:
    """Trains on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--late-rank", type=int, default=2)
    parser.add_argument("--late-layer", type=int, default=1)
    parser.add_argument("--late-ms", type=float, default=90, help="how long that layer sleeps in each step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # otherwise gloo looks up the host name, which may fail
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        with suppress(OSError):  # stderr may be closed
            sys.stderr.write(f"demo: {dist.get_world_size()} ranks train a small transformer; "
                             f"layers.{args.late_layer}.mlp of rank {args.late_rank} sleeps {args.late_ms:g} ms in "
                             "every step\n")
    torch.manual_seed(0)
    is_late = dist.get_rank() == args.late_rank
    pauses_s = [args.late_ms / 1000 if is_late and layer == args.late_layer else 0.0 for layer in range(DEPTH)]
    model = DistributedDataParallel(Transformer(pauses_s))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(args.steps):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    # a thread of gloo takes the GIL to free the last collective, and the destructor of DDP waits for that thread
    # without releasing the GIL (torch 2.13): if the model is freed at once, a rank can hang
    time.sleep(0.1)


if __name__ == "__main__":
    main()
