"""The profiler of torch while steps are traced, and the timeline that it leaves."""
