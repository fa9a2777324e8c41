"""The package in which DeepSpeed has its profiler."""
