"""A job of Lightning: `lightning_fit.py FOLDER [--profiler RUN] [--late MS] [--max-steps N] [--plain]
[--devices N] [--strategy ddp]`.

It accumulates 2 batches of 4 a step, and logs the mean loss of all ranks. Validation keeps gradients on, and the model
in training mode, and is run before the training and within it; `--plain` has none of these.
"""

import argparse
import json
from pathlib import Path

import torch
import torchvision_operators  # noqa: F401 (before Lightning)

# isort: split
import lightning
from late_block import Net, Samples
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--profiler")
parser.add_argument("--late", type=int, default=0)
parser.add_argument("--max-steps", type=int, default=7)
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--strategy", default="ddp")
parser.add_argument("--plain", action="store_true")
options = parser.parse_args()
calls = {"train": 0, "evaluation": 0}


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net(options.late)

    def training_step(self, batch, number):
        calls["train"] += 1
        loss = self.net(batch).square().mean()
        if not options.plain:
            self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, number):
        calls["evaluation"] += 1
        with torch.inference_mode(mode=False), torch.enable_grad():
            x = batch.clone().requires_grad_()
            self.net.train()
            force, = torch.autograd.grad(self.net(x).sum(), x)  # as models of molecules do
            self.log("force", force.abs().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def on_fit_end(self):
        (options.folder / f"calls{self.trainer.global_rank}.json").write_text(json.dumps({
            **calls, "steps": self.trainer.global_step, "local_rank": self.trainer.local_rank,
            "callbacks": [type(one).__name__ for one in self.trainer.callbacks]}))


def main():
    profiler = None
    if options.profiler:
        from distprof.integrations.lightning import DistprofProfiler

        profiler = DistprofProfiler(options.profiler, steps="wait=2,count=1,time=1,trace=2,arrivals=0")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=options.devices, strategy=options.strategy, max_steps=options.max_steps,
        profiler=profiler, accumulate_grad_batches=1 if options.plain else 2,
        val_check_interval=None if options.plain else 4, logger=False, inference_mode=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), DataLoader(Samples(4000), batch_size=4),
                None if options.plain else DataLoader(Samples(24), batch_size=4))


if __name__ == "__main__":  # ddp_spawn imports this file
    main()
