"""A program of one process that records its execution trace and its timeline: `own_observer.py FOLDER`."""

import sys

import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

folder = sys.argv[1]
model = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
observer = ExecutionTraceObserver().register_callback(f"{folder}/nn_demo_et.json")
profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer)
profiler.start()
for epoch in range(3):
    with record_function(f"epoch_{epoch}"):
        loss = nn.functional.mse_loss(model(torch.randn(16, 10)), torch.randn(16, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
profiler.stop()
profiler.export_chrome_trace(f"{folder}/nn_demo_trace.json")
