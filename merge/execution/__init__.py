"""Execution traces: what ran on a rank, and its dependencies."""
