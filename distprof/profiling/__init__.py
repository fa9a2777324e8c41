"""A call of a model outside of a job: costs with latencies, and inference throughput."""
