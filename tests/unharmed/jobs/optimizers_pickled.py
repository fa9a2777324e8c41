"""Optimizers, schedulers and scalers are pickled and come back between steps (https://github.com/pytorch/pytorch/issues/94450)."""
import io
import pickle

import torch
from small import digest, loss_of, net, sgd

model = net()
optimizer = sgd(model)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=30)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for number in range(10):
    optimizer.zero_grad()
    scaler.scale(loss_of(model, number)).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    text, file = pickle.dumps((optimizer, scaler, scheduler.state_dict())), io.BytesIO()
    torch.save({"optimizer": optimizer, "scheduler": scheduler}, file)
    print(number, len(text), len(file.getvalue()), sorted(vars(optimizer)), sorted(vars(scheduler)),
          len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks))
    if number == 4:
        back = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        print(back["scheduler"].last_epoch, back["optimizer"] is back["scheduler"].optimizer,
              [group["lr"] for group in back["optimizer"].param_groups])
print(digest(model))
