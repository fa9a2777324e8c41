"""Preemption: SIGTERM, checkpoint, and a second life in the same process that goes on from it (https://github.com/facebookincubator/submitit/pull/1615)."""
import os
import signal

import torch
from small import digest, net, sgd, step


class Preempted(Exception):
    pass


def on_signal(number, frame):
    raise Preempted(signal.Signals(number).name)


def life(first):
    model = net(seed=first)
    optimizer = sgd(model)
    if first:
        saved = torch.load("checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    done = first
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        while done < 12:
            step(model, optimizer, done)
            done += 1
            if done == 5 and not first:
                os.kill(os.getpid(), signal.SIGTERM)
    except Preempted as why:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
        print("preempted by", why, "after", done)
        return life(done)
    finally:
        print("before me", signal.signal(signal.SIGTERM, before) is on_signal, before in (signal.SIG_DFL, on_signal))
    print("done", done, digest(model))


life(0)
