"""Readings of a machine, from the kernel and from the libraries of its GPUs."""
