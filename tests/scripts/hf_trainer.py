"""A job of the Trainer of transformers: `hf_trainer.py FOLDER [--out RUN] [--late MS] [--max-steps N] [--plain]`.

It accumulates 3 batches of 2 a step and evaluates 8 samples a rank each second step; `--plain` does neither.
"""

import argparse
import json
from pathlib import Path

import torchvision_operators  # noqa: F401 (before transformers)
from late_block import Net, Samples
from torch import nn
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--out")
parser.add_argument("--late", type=int, default=0)
parser.add_argument("--max-steps", type=int, default=7)
parser.add_argument("--plain", action="store_true")
options = parser.parse_args()
calls = {"train": 0, "evaluation": 0}


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net(options.late)

    def forward(self, x, labels=None):
        calls["train" if self.training else "evaluation"] += 1
        logits = self.net(x)
        return {"loss": logits.square().mean(), "logits": logits[:, 0]}


class Pairs(Samples):
    def __getitem__(self, index: int) -> dict:
        return {"x": super().__getitem__(index), "labels": 0}


callbacks = []
if options.out:
    from distprof.integrations.transformers import DistprofCallback

    callbacks = [DistprofCallback(options.out, steps="wait=2,count=1,time=1,trace=2,arrivals=0")]
trainer = Trainer(
    model=WithLoss(), train_dataset=Pairs(4000), eval_dataset=Pairs(16), callbacks=callbacks,
    args=TrainingArguments(
        output_dir=str(options.folder / "output"), per_device_train_batch_size=2, per_device_eval_batch_size=4,
        gradient_accumulation_steps=1 if options.plain else 3, eval_strategy="no" if options.plain else "steps",
        eval_steps=2, max_steps=options.max_steps, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1000,
        disable_tqdm=True))
trainer.train()
(options.folder / f"calls{trainer.args.process_index}.json").write_text(json.dumps(
    {**calls, "steps": trainer.state.global_step}))
trainer.evaluate()
