"""Snapshots of torch.cuda.memory: reads the untrusted files, and finds lifetimes of allocations and fragmentation."""
