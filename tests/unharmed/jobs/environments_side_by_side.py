"""A vector of environments in forked daemons, with pipes and shared memory (https://github.com/DLR-RM/stable-baselines3/issues/1814)."""
# recorded: any
import multiprocessing

import numpy as np
import torch
from small import digest, net

context = multiprocessing.get_context("fork")


def game(pipe, shared, index):
    states = np.frombuffer(shared, dtype=np.float32).reshape(3, 8)
    while (action := pipe.recv()) is not None:
        states[index] = np.roll(states[index], action) * 0.9 + index
        pipe.send(float(states[index].sum()))
    pipe.close()


if __name__ == "__main__":
    shared = context.RawArray("f", 24)
    pipes, processes = [], []
    for index in range(3):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=game, args=(theirs, shared, index), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    states = torch.frombuffer(shared, dtype=torch.float32).view(3, 8)
    policy = net()
    optimizer = torch.optim.Adam(policy.parameters())
    for update in range(8):
        losses = []
        for _ in range(3):
            chances = policy(states.clone()).log_softmax(1)
            actions = chances.argmax(1)
            for pipe, action in zip(pipes, actions.tolist(), strict=True):
                pipe.send(action)
            rewards = torch.tensor([pipe.recv() for pipe in pipes])
            losses.append(-(chances.gather(1, actions[:, None]).squeeze() * rewards).mean())
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    print([process.exitcode for process in processes], digest(policy))
