"""Where DeepSpeed has its profiler."""
