"""Execution traces: what ran on a rank and what depended on what."""
