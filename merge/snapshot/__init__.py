"""Snapshots of torch.cuda.memory: read without trust, what was alive when, how the device's memory is divided."""
