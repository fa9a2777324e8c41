"""Profiling a model outside of a job: counts with latencies, and inference throughput."""
