"""Memory: every allocation of a rank, the operator, module and phase that made it, and what was alive at the peak."""
