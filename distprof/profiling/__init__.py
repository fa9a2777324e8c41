"""Profiling a model outside a job: counts with latencies, and inference throughput."""
