"""Generates runs and traces of any size for benchmarks and tests, without recording a job."""
