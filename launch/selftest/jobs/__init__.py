"""The scripts that `distprof selftest` records, in plain PyTorch."""
