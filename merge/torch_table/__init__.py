"""Operators of a rank as in torch.profiler's `key_averages`: the session, stacks, estimates of FLOPs, averages."""
