"""Reinforcement learning with an environment in a process that is spoken to by pipes (https://github.com/openai/gym/issues/1544)."""
# recorded: any
import json
import subprocess
import sys

import torch
from small import digest
from torch import nn

GAME = """
import json, sys
state = 0.0
for line in sys.stdin:
    state = 0.9 * state + (1 if json.loads(line) else -1)
    print(json.dumps([state, -abs(state - 2)]), flush=True)
"""
game = subprocess.Popen([sys.executable, "-c", GAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def play(action):
    game.stdin.write(json.dumps(action) + "\n")
    game.stdin.flush()
    return json.loads(game.stdout.readline())


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
state = 0.0
for episode in range(9):
    chances, rewards = [], []
    for _ in range(5):
        choice = torch.distributions.Categorical(logits=policy(torch.tensor([state])))
        action = choice.sample()
        state, reward = play(bool(action.item()))
        chances.append(choice.log_prob(action))
        rewards.append(reward)
    loss = -(torch.stack(chances) * (torch.tensor(rewards) - sum(rewards) / 5)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, sum(rewards))
game.stdin.close()
print(game.wait(), digest(policy))
