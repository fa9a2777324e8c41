"""The job of `distprof selftest` in which everything is known, and what distprof says of it."""
