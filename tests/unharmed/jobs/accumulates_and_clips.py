"""Gradients of several batches, clipped, in bfloat16 by autocast, with a scaler that skips a step (https://pytorch.org/docs/stable/notes/amp_examples.html)."""
# recorded: any
import torch
from small import digest, loss_of, net

model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for number in range(24):
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, number) / 2
    scaler.scale(loss * (float("inf") if number == 9 else 1)).backward()
    if number % 2:
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad(set_to_none=bool(number % 4 == 1))
        print(number, norm.item(), scaler.get_scale(), torch.is_autocast_enabled("cpu"))
print(digest(model))
