"""Operators of a rank as `key_averages` of torch.profiler has them: session, stacks, estimates of FLOPs, averages."""
