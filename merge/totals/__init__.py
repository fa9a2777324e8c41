"""Numbers of all ranks reduced to per-GPU and model totals."""
